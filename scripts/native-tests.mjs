// node scripts/native-tests.mjs [plain] [sanitized] [addon]: builds and runs the C++ tests, plainly and with
// AddressSanitizer and UndefinedBehaviorSanitizer (without the longest prompts, which take ten times as long there), and
// the addon's tests with the sanitized addon; all three when none is named. Closes with one line that says how many passed
// and failed.
import { execFileSync, spawnSync } from 'node:child_process';
import { readFileSync, rmSync } from 'node:fs';
import { ROOT, run, say } from './lib/run.mjs';

const LONG_UNDER_SANITIZERS = 'Long(Plain|Flash)/|HandoffWindow|HandoffAnswer|HandoffSequences|/2049_';
/** Tests of the addon that stay short with a sanitized addon; llama.cpp itself is not instrumented. */
const ADDON_TESTS = ['architectures', 'loading', 'tokenizer', 'sequences', 'lifetime'];

const counts = { passed: 0, failed: 0 };
const wanted = process.argv.slice(2);
const runs = (name) => wanted.length === 0 || wanted.includes(name);
if (runs('plain')) await cppTests('plain', ['--tools'], 'cmake', []);
if (runs('sanitized'))
  await cppTests('sanitized', ['--tools', '--sanitize'], 'cmake-sanitize', ['-E', LONG_UNDER_SANITIZERS]);
if (runs('addon')) await addonTests();
process.stdout.write(`${counts.passed} passed, ${counts.failed} failed\n`);
process.exit(counts.failed === 0 && counts.passed > 0 ? 0 : 1);

async function cppTests(name, switches, folder, filter) {
  await run('node', ['native/metal/scripts/build.mjs', ...switches], { show: true });
  say(`C++ tests, ${name}`);
  // Who asks for reports gets them.
  const reports = process.env['MUSER_TEST_REPORTS'];
  const args = [
    ...(reports ? ['--output-junit', `${reports}/ctest-${name}.xml`] : []),
    '--test-dir',
    `${ROOT}/native/metal/build/${folder}`,
    '--output-on-failure',
    '--no-tests=error',
    ...filter,
  ];
  const { stdout, status } = spawnSync('ctest', args, { encoding: 'utf8', maxBuffer: 1 << 28 });
  process.stdout.write(stdout.slice(-20_000));
  const summary = /(\d+) tests? failed out of (\d+)/.exec(stdout);
  count(summary ? Number(summary[2]) - Number(summary[1]) : 0, summary ? Number(summary[1]) : 1, status);
}

async function addonTests() {
  await run('node', ['native/metal/scripts/build.mjs', '--sanitize'], { show: true });
  say('addon, sanitized');
  const report = `${ROOT}/.cache/vitest-sanitized.json`;
  rmSync(report, { force: true });
  const library = (name) => execFileSync('g++', [`-print-file-name=${name}`], { encoding: 'utf8' }).trim();
  const code = await run(
    'node',
    [
      'node_modules/vitest/vitest.mjs',
      'run',
      '--project',
      '@muser/metal',
      '--reporter=default',
      '--reporter=json',
      `--outputFile.json=${report}`,
      ...ADDON_TESTS,
    ],
    {
      show: true,
      mayFail: true,
      env: {
        // Node itself is not instrumented, so the sanitizers have to be there first; what V8 keeps is not a leak.
        LD_PRELOAD: ['libasan.so', 'libubsan.so', 'libstdc++.so'].map(library).join(' '),
        ASAN_OPTIONS: 'detect_leaks=0',
        UBSAN_OPTIONS: 'halt_on_error=1:print_stacktrace=1',
        MUSER_ENGINE_ADDON: `${ROOT}/native/metal/build/sanitize/muser_engine.node`,
      },
    },
  );
  const { numPassedTests, numFailedTests } = JSON.parse(readFileSync(report, 'utf8'));
  count(numPassedTests, numFailedTests, code);
}

/** A suite that ended badly has at least one failure, whatever it counted. */
function count(passed, failed, exitCode) {
  counts.passed += passed;
  counts.failed += Math.max(failed, exitCode === 0 ? 0 : 1);
}
