// node scripts/limits.mjs [--write]: compares the figures in docs/LIMITS.md with the code, and says which caps of lengths it
// does not name. --write puts the figures in.
import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { ROOT, fail, say } from './lib/run.mjs';
import { missingCaps, withFigures } from './lib/limit-links.mjs';

const PAGE = 'docs/LIMITS.md';
/** The protocol's have a table of their own, which is generated from it; what tests and benches use caps nothing. */
const ELSEWHERE = /^packages\/(testing\/|protocol\/src\/(limits|docs\/))/;

const read = (path) => (existsSync(`${ROOT}/${path}`) ? readFileSync(`${ROOT}/${path}`, 'utf8') : null);
const page = read(PAGE);
const { text, problems } = withFigures(page, read);
const sources = ['packages/*/src/*.ts', 'native/metal/ts/*.ts', 'native/metal/src/*.cpp'];
const listed = ['ls-files', '--cached', '--others', '--exclude-standard', '--', ...sources];
const paths = execFileSync('git', listed, { cwd: ROOT, encoding: 'utf8' }).split('\n').filter(Boolean);
problems.push(...missingCaps(page, [...new Set(paths)].filter((path) => !ELSEWHERE.test(path)).sort(), read));
for (const [, target] of page.matchAll(/\]\(\.\.\/([^\s)]+)/g)) {
  if (read(target) === null) problems.push(`${PAGE} links to ${target}, which is not there`);
}
if (text !== page) {
  if (process.argv.includes('--write')) writeFileSync(`${ROOT}/${PAGE}`, text);
  else problems.push(`${PAGE} has other figures than the code: node scripts/limits.mjs --write`);
}
for (const problem of problems) say(problem);
if (problems.length > 0) fail(`${problems.length} problems with ${PAGE}`);
