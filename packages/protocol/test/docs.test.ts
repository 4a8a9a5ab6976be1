import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { errorTable, limitTable, replaceBetweenMarks } from '../src/docs/tables.js';
import * as limits from '../src/limits.js';

const read = (file: string): string => readFileSync(new URL(`../../../docs/${file}`, import.meta.url), 'utf8');

describe('the documents', () => {
  it.each([
    ['ERRORS.md', 'errors', errorTable()],
    ['LIMITS.md', 'protocol limits', limitTable()],
  ])('%s has the table that the code has (node packages/protocol/scripts/write-docs.mjs)', (file, name, table) => {
    expect(read(file)).toBe(replaceBetweenMarks(read(file), name, table));
  });

  it('PROTOCOL.md names every message and its version', () => {
    const text = read('PROTOCOL.md');
    for (const file of ['handoff', 'node', 'placement']) {
      const proto = readFileSync(new URL(`../../../proto/muser/v1/${file}.proto`, import.meta.url), 'utf8');
      for (const [, name] of proto.matchAll(/^message (\w+)/gm)) expect(text).toContain(`\`${name}\``);
    }
    expect(text).toContain(`version ${limits.PROTOCOL_VERSION}`);
  });
});
