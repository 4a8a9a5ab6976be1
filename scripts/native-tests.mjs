// Builds and runs the C++ tests twice: plainly, and with AddressSanitizer and UndefinedBehaviorSanitizer (without the
// longest prompts, which take ten times as long there). Closes with one line that says how many passed and failed.
import { spawnSync } from 'node:child_process';
import { ROOT, run, say } from './lib/run.mjs';

const LONG_UNDER_SANITIZERS = 'Long/|HandoffWindow|HandoffAnswer|HandoffSequences|/2049_';

const counts = { passed: 0, failed: 0 };
await suite('plain', ['--tools'], 'cmake', []);
await suite('sanitized', ['--tools', '--sanitize'], 'cmake-sanitize', ['-E', LONG_UNDER_SANITIZERS]);
process.stdout.write(`${counts.passed} passed, ${counts.failed} failed\n`);
process.exit(counts.failed === 0 && counts.passed > 0 ? 0 : 1);

async function suite(name, switches, folder, filter) {
  await run('node', ['native/metal/scripts/build.mjs', ...switches], { show: true });
  say(`C++ tests, ${name}`);
  const args = [
    '--test-dir',
    `${ROOT}/native/metal/build/${folder}`,
    '--output-on-failure',
    '--no-tests=error',
    ...filter,
  ];
  const { stdout, status } = spawnSync('ctest', args, { encoding: 'utf8', maxBuffer: 1 << 28 });
  process.stdout.write(stdout.slice(-20_000));
  const summary = /(\d+) tests? failed out of (\d+)/.exec(stdout);
  const failed = summary ? Number(summary[1]) : 1;
  counts.failed += Math.max(failed, status === 0 ? 0 : 1);
  counts.passed += summary ? Number(summary[2]) - failed : 0;
}
