// One step of `scripts/ci.mjs`: a command with its log, how long it took, and what its last line counted.
import { spawn } from 'node:child_process';
import { closeSync, openSync, readFileSync } from 'node:fs';
import { clearTimeout, setTimeout } from 'node:timers';
import { ROOT } from './run.mjs';

export const LOGS = `${ROOT}/.cache/ci`;
export const REPORTS = `${LOGS}/reports`;
/** A step that hangs must not cost the whole run its result. */
const LIMIT_SECONDS = 1_500;
/** What a step ends with when this machine cannot run it, which its log tells: no root, no network namespaces. */
const EXIT_NOT_HERE = 77;
const PASSED_AND_FAILED = /^(\d+) passed, (\d+) failed$/gm;
const PROCESSOR_TIME = /\nprocessor seconds ([\d.]+) ([\d.]+)\n$/;

const running = new Set();

/** Resolves to `{ name, seconds, cpuSeconds, passed, failed }`; a step that ends badly has at least one failure. */
export function runStep({ name, command }) {
  const started = Date.now();
  const log = `${LOGS}/${name}.log`;
  const output = openSync(log, 'w');
  // The shell adds up the processor time of all that the command has started and waited for.
  const script = 'TIMEFORMAT="processor seconds %U %S"; time "$@"';
  const child = spawn('bash', ['-c', script, 'step', ...command], {
    cwd: ROOT,
    env: { ...process.env, MUSER_TEST_REPORTS: REPORTS },
    stdio: ['ignore', output, output],
    detached: true,
  });
  closeSync(output);
  running.add(child);
  const limit = setTimeout(() => stop(child), LIMIT_SECONDS * 1000);
  return new Promise((resolve) => {
    const settle = (code) => {
      clearTimeout(limit);
      running.delete(child);
      resolve({ name, seconds: Math.round((Date.now() - started) / 1000), ...count(readFileSync(log, 'utf8'), code) });
    };
    child.on('error', () => settle(127));
    child.on('exit', (code) => settle(code ?? 1));
  });
}

export function stopAll() {
  for (const child of running) stop(child);
}

function stop(child) {
  try {
    process.kill(-child.pid, 'SIGKILL');
  } catch {
    // It has ended.
  }
}

function count(text, code) {
  const [, passed = 0, failed = 0] = [...text.matchAll(PASSED_AND_FAILED)].at(-1) ?? [];
  const [, user = 0, system = 0] = PROCESSOR_TIME.exec(text) ?? [];
  return {
    passed: Number(passed),
    failed: Math.max(Number(failed), code === 0 || code === EXIT_NOT_HERE ? 0 : 1),
    cpuSeconds: Math.round(Number(user) + Number(system)),
  };
}
