// Writes the generated tables of docs/ERRORS.md and docs/LIMITS.md. Build first; then: node scripts/write-docs.mjs
import { readFileSync, writeFileSync } from 'node:fs';
import { errorTable, limitTable, replaceBetweenMarks } from '../dist/docs/tables.js';

for (const [file, name, table] of [
  ['ERRORS.md', 'errors', errorTable()],
  ['LIMITS.md', 'protocol limits', limitTable()],
]) {
  const path = new URL(`../../../docs/${file}`, import.meta.url);
  writeFileSync(path, replaceBetweenMarks(readFileSync(path, 'utf8'), name, table));
}
