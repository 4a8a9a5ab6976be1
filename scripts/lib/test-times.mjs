// How long each test file took, from the reports of vitest (JSON), and of pytest and ctest (JUnit XML).
import { readFileSync } from 'node:fs';
import { relative } from 'node:path';

/** `[{ file, tests, seconds }]`; C++ tests and Python's have a suite and a module in place of a file. */
export function filesOfReport(path, root) {
  const text = readFileSync(path, 'utf8');
  return path.endsWith('.json') ? ofVitest(JSON.parse(text), root) : ofJunit(text, path.includes('ctest'));
}

function ofVitest({ testResults }, root) {
  return testResults.map(({ name, startTime, endTime, assertionResults }) => ({
    file: relative(root, name),
    tests: assertionResults.length,
    seconds: (endTime - startTime) / 1000,
  }));
}

function ofJunit(text, isCpp) {
  const files = new Map();
  for (const [tag] of text.matchAll(/<testcase [^>]*>/g)) {
    const attribute = (name) => new RegExp(` ${name}="([^"]*)"`).exec(tag)?.[1] ?? '';
    const name = attribute('classname');
    const file = isCpp ? `${name.split('.')[0]} (C++)` : name;
    const entry = files.get(file) ?? { file, tests: 0, seconds: 0 };
    entry.tests += 1;
    entry.seconds += Number(attribute('time'));
    files.set(file, entry);
  }
  return [...files.values()];
}

/** Right-aligned but for the first column. */
export function table(heads, rows) {
  const lines = [heads, ...rows].map((row) => row.map(String));
  const widths = heads.map((_, column) => Math.max(...lines.map((line) => line[column].length)));
  const pad = (cell, column) => (column === 0 ? cell.padEnd(widths[0]) : cell.padStart(widths[column]));
  return lines.map((line) => `${line.map(pad).join('  ')}\n`).join('');
}
