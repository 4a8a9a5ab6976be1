import { expect, it } from 'vitest';

interface Script {
  withFigures: (page: string, read: (path: string) => string | null) => { text: string; problems: string[] };
  missingCaps: (page: string, paths: string[], read: (path: string) => string | null) => string[];
}

const { withFigures, missingCaps } = (await import(
  new URL('../../scripts/lib/limit-links.mjs', import.meta.url).href
)) as Script;

const files: Record<string, string> = {
  'packages/protocol/src/limits.ts': 'export const MAX_NODES = 4_096;\nexport const ID_BYTES = 27;\n',
  'a.ts': [
    'const MIB = 1 << 20;',
    'export const MAX_BYTES = 4 * MIB;',
    'const MAX_FILE_BYTES = MAX_NODES * (ID_BYTES + 3) + 256;',
    'const WAIT_MS = 10_000;',
    'const MAX_TEXT_CHARACTERS = text.length;',
  ].join('\n'),
  'b.cpp': 'constexpr size_t kMaxTextBytes = 64U << 20;',
  'c.json': '{"limits":{"frameBytes":65536}}',
};
const read = (path: string): string | null => files[path] ?? null;
const link = (figure: string, path: string, name: string): string => `[${figure}](../${path} '${name}')`;

it.each([
  ['a.ts', 'MAX_BYTES', '4 MiB'],
  ['a.ts', 'MAX_FILE_BYTES', '123,136 bytes'],
  ['a.ts', 'WAIT_MS', '10 s'],
  ['b.cpp', 'kMaxTextBytes', '64 MiB'],
  ['c.json', 'frameBytes', '64 KiB'],
])('the page of limits has the figure of %s: %s', (path, name, figure) => {
  const { text, problems } = withFigures(`| ${link('1 byte', path, name)} |`, read);
  expect(text).toBe(`| ${link(figure, path, name)} |`);
  expect(problems).toEqual([]);
});

it.each([
  ['a.ts', 'MAX_TEXT_CHARACTERS'],
  ['a.ts', 'GONE'],
  ['gone.ts', 'MAX_BYTES'],
])('the page of limits says that it cannot know %s: %s', (path, name) => {
  expect(withFigures(link('1', path, name), read).problems).toHaveLength(1);
});

it('finds the caps of lengths that the page of limits does not name', () => {
  const page = link('4 MiB', 'a.ts', 'MAX_BYTES') + link('1', 'other.ts', 'kMaxTextBytes');
  const missing = missingCaps(page, ['a.ts', 'b.cpp'], read).map((problem) => problem.split(' ').slice(-3).join(' '));
  expect(missing).toEqual(['MAX_FILE_BYTES of a.ts', 'MAX_TEXT_CHARACTERS of a.ts', 'kMaxTextBytes of b.cpp']);
});
