// `npm test [-- --slow] [filters]`: runs the tests and closes with one line that says how many passed and failed.
import { copyFileSync, existsSync, mkdirSync, readFileSync, rmSync } from 'node:fs';
import { ROOT, run } from './lib/run.mjs';

const slow = process.argv.includes('--slow');
const filters = process.argv.slice(2).filter((argument) => argument !== '--slow');
// Of this run alone: another one may go on beside it.
const report = `${ROOT}/.cache/vitest-${process.pid}.json`;
mkdirSync(`${ROOT}/.cache`, { recursive: true });

const code = await run(
  'node',
  [
    'node_modules/vitest/vitest.mjs',
    'run',
    '--reporter=default',
    '--reporter=json',
    `--outputFile.json=${report}`,
    ...filters,
  ],
  { show: true, mayFail: true, env: { MUSER_SLOW_TESTS: slow ? '1' : '' } },
);
if (!existsSync(report)) {
  process.stdout.write('0 passed, 1 failed\n');
  process.exit(1);
}
const { numPassedTests, numFailedTests, testResults } = JSON.parse(readFileSync(report, 'utf8'));
// Who asks for reports gets them as they are.
const kept = process.env['MUSER_TEST_REPORTS'];
if (kept) copyFileSync(report, `${kept}/vitest-${process.pid}.json`);
rmSync(report);
// A file that cannot even be loaded has no failed test, but it is a failure.
const brokenFiles = testResults.filter(
  (file) => file.status === 'failed' && !file.assertionResults.some((t) => t.status === 'failed'),
);
const failed = Math.max(numFailedTests + brokenFiles.length, code === 0 ? 0 : 1);
process.stdout.write(`${numPassedTests} passed, ${failed} failed\n`);
process.exit(failed === 0 && numPassedTests > 0 ? 0 : 1);
