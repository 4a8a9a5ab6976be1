import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';

const read = (path: string): string => readFileSync(new URL(`../../../${path}`, import.meta.url), 'utf8');

const [, table = ''] = read('docs/SECURITY.md').split('## Promises and their tests');
const promises = [...table.matchAll(/^\| (.+?) +\| `(.+?)` +\| (.+?) +\|$/gm)].map(([, promise, file, test]) => ({
  promise: promise ?? '',
  file: file ?? '',
  test: test ?? '',
}));

describe('docs/SECURITY.md', () => {
  it('names a test for every promise', () => {
    expect(promises.length).toBeGreaterThan(40);
  });

  it.each(promises)('$promise', ({ file, test }) => {
    expect(read(file).includes(test), `"${test}" in ${file}`).toBe(true);
  });
});
