// node scripts/python-tests.mjs [quick] [vllm]: lints, type-checks and tests the Python package; its tests with real vLLM;
// both when none is named. Closes with one line that says how many passed and failed. Installs vLLM and the tools into
// .cache/vllm first.
import { spawnSync } from 'node:child_process';
import { ROOT, run, say } from './lib/run.mjs';

const PACKAGE = `${ROOT}/packages/gb10-producer/python`;
const ENVIRONMENT = `${ROOT}/.cache/vllm/env`;
const TOOLS = ['ruff>=0.14,<1', 'mypy>=1.18,<3', 'pytest>=8.4,<10'];

await run('node', ['scripts/vllm-env.mjs'], { show: true });
await run(`${ROOT}/.cache/vllm/uv/bin/uv`, [
  'pip',
  'install',
  '--quiet',
  '--python',
  `${ENVIRONMENT}/bin/python`,
  ...TOOLS,
]);

const counts = { passed: 0, failed: 0 };
const wanted = process.argv.slice(2);
const runs = (name) => wanted.length === 0 || wanted.includes(name);
if (runs('quick')) {
  check('lint', ['ruff', 'check', '.', `${ROOT}/bench/gpu`]);
  check('types', ['mypy']);
  tests('unit tests', []);
}
if (runs('vllm')) tests('tests on real vLLM', ['-m', 'vllm']);
process.stdout.write(`${counts.passed} passed, ${counts.failed} failed\n`);
process.exit(counts.failed === 0 && counts.passed > 0 ? 0 : 1);

function check(name, args) {
  const { status } = python(name, args);
  counts[status === 0 ? 'passed' : 'failed'] += 1;
}

function tests(name, args) {
  // Who asks for reports gets them.
  const reports = process.env['MUSER_TEST_REPORTS'];
  const report = reports ? [`--junitxml=${reports}/pytest-${process.pid}-${args.length}.xml`] : [];
  const { stdout, status } = python(name, ['pytest', '-q', '-p', 'no:cacheprovider', ...report, ...args]);
  const number = (pattern) => Number(pattern.exec(stdout)?.[1] ?? 0);
  const failed = number(/(\d+) failed/) + number(/(\d+) errors?/);
  counts.passed += number(/(\d+) passed/);
  counts.failed += Math.max(failed, status === 0 ? 0 : 1);
}

function python(name, args) {
  say(`python: ${name}`);
  const result = spawnSync(`${ENVIRONMENT}/bin/python`, ['-B', '-m', ...args], {
    cwd: PACKAGE,
    encoding: 'utf8',
    maxBuffer: 1 << 28,
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  // What could not be started, or printed too much, may have printed nothing.
  if (result.error !== undefined) process.stderr.write(`${result.error.message}\n`);
  const stdout = result.stdout ?? '';
  process.stdout.write(stdout.slice(-20_000));
  return { status: result.status, stdout };
}
