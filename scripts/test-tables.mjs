// node scripts/test-tables.mjs [--write]: the tables in docs/ that are made from comments above tests. Without --write it
// says what is not up to date, and fails then.
import { execFileSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { ROOT, fail, say } from './lib/run.mjs';
import { taggedTests } from './lib/tagged-tests.mjs';
import { faultsPage, promisesPage } from './lib/test-tables.mjs';

const write = process.argv.includes('--write');
const read = (path) => readFileSync(`${ROOT}/${path}`, 'utf8');

const found = sourceFiles().map((path) => taggedTests(path, read(path)));
const problems = found.flatMap((file) => file.problems);
const tests = found.flatMap((file) => file.tests);
for (const [path, page] of [
  ['docs/PROMISES.md', promisesPage],
  ['docs/FAULTS.md', faultsPage],
]) {
  const { text, problems: more } = page(read(path), tests);
  problems.push(...more);
  if (text === read(path)) continue;
  if (write) writeFileSync(`${ROOT}/${path}`, text);
  else problems.push(`${path} is not up to date: node scripts/test-tables.mjs --write`);
}
for (const problem of problems) say(problem);
if (problems.length > 0) fail(`${problems.length} problems with the tables made from tests`);

/** Files of this repository, new ones too, that could have tests in them. */
function sourceFiles() {
  const patterns = ['ts', 'mts', 'mjs', 'py', 'cpp'].map((ending) => `*.${ending}`);
  const listed = ['ls-files', '--cached', '--others', '--exclude-standard', '--', ...patterns];
  const paths = execFileSync('git', listed, { cwd: ROOT, encoding: 'utf8' }).split('\n');
  return [...new Set(paths)]
    .filter((path) => path.split('/').includes('test') || path.split('/').includes('tests'))
    .sort();
}
