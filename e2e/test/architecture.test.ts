import { readFileSync, readdirSync } from 'node:fs';
import { describe, expect, it } from 'vitest';

interface Manifest {
  name: string;
  exports?: unknown;
  dependencies?: Record<string, string>;
  devDependencies?: Record<string, string>;
}

const root = new URL('../../', import.meta.url);
const folders = [
  ...readdirSync(new URL('packages', root)).map((name) => `packages/${name}`),
  'native/metal',
  'bench',
  'e2e',
];
const manifests = folders.map(
  (folder) => JSON.parse(readFileSync(new URL(`${folder}/package.json`, root), 'utf8')) as Manifest,
);

/** The rows of the table in docs/ARCHITECTURE.md: package -> what it may use, and what its tests may use as well. */
function allowed(): Map<string, { uses: string[]; tests: string[] }> {
  const text = readFileSync(new URL('docs/ARCHITECTURE.md', root), 'utf8');
  const names = (cell: string) => [...cell.matchAll(/`(@muser\/[a-z0-9-]+)`/g)].map((match) => match[1] ?? '');
  const rows = text.split('\n').filter((line) => line.startsWith('| `@muser/'));
  return new Map(
    rows.map((row) => {
      const [, name = '', uses = '', tests = ''] = row.split('|');
      return [names(name)[0] ?? '', { uses: names(uses), tests: names(tests) }];
    }),
  );
}

const ours = (dependencies: Record<string, string> = {}) =>
  Object.keys(dependencies).filter((name) => name.startsWith('@muser/'));

describe('dependencies', () => {
  const table = allowed();

  it('has a row for every package and no row too many', () => {
    expect([...table.keys()].sort()).toEqual(manifests.map((manifest) => manifest.name).sort());
  });

  it.each(manifests)('$name uses what the table allows', (manifest) => {
    expect(ours(manifest.dependencies).sort()).toEqual(table.get(manifest.name)?.uses.sort());
    expect(table.get(manifest.name)?.tests).toEqual(expect.arrayContaining(ours(manifest.devDependencies)));
  });

  it.each(manifests)('$name says what of it may be imported', (manifest) => {
    expect(manifest.exports).toBeDefined();
  });
});
