// What `.ci/run` runs when the tools are there: the checks and tests of this repository, two at a time, one for each core,
// and one more that mostly waits. What takes longest starts first, so the two lanes end together. The output of each step
// is shown when it has ended; at the end stand the steps, the slowest test files, and `N passed, N failed`.
import { mkdirSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { ciSteps } from './lib/ci-steps.mjs';
import { LOGS, REPORTS, runStep, stopAll } from './lib/ci-step.mjs';
import { ROOT } from './lib/run.mjs';
import { filesOfReport, table } from './lib/test-times.mjs';

const BUSY_LANES = 2;
const WAITING_LANES = 1;
const SLOWEST = 25;

rmSync(LOGS, { recursive: true, force: true });
mkdirSync(REPORTS, { recursive: true });
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) {
  process.on(signal, () => {
    stopAll();
    process.exit(1);
  });
}

const started = Date.now();
const secondsSoFar = () => Math.round((Date.now() - started) / 1000);
const results = await runAll(ciSteps(process.argv.includes('--all')));
report();

/** Each step as soon as what it needs has ended and a lane is free. */
async function runAll(steps) {
  const left = [...steps].sort((a, b) => b.seconds - a.seconds);
  const running = new Map();
  const ended = new Map();
  const free = (waits) =>
    [...running.values()].filter(({ step }) => step.waits === waits).length < (waits ? WAITING_LANES : BUSY_LANES);
  while (left.length > 0 || running.size > 0) {
    for (const step of [...left]) {
      if (!free(step.waits) || !step.needs.every((name) => ended.has(name))) continue;
      left.splice(left.indexOf(step), 1);
      process.stdout.write(`== ${step.name} starts at ${secondsSoFar()} s\n`);
      running.set(step.name, { step, end: runStep(step) });
    }
    const result = await Promise.race([...running.values()].map(({ end }) => end));
    running.delete(result.name);
    ended.set(result.name, result);
    show(result);
  }
  return [...ended.values()];
}

function show({ name, seconds, passed, failed }) {
  process.stdout.write(`\n== ${name} (shown when it ended)\n`);
  process.stdout.write(readFileSync(`${LOGS}/${name}.log`));
  process.stdout.write(`== ${name}: ${passed} passed, ${failed} failed, ${seconds} s, ended at ${secondsSoFar()} s\n`);
}

function report() {
  const files = readdirSync(REPORTS).flatMap((name) => filesOfReport(`${REPORTS}/${name}`, ROOT));
  files.sort((a, b) => b.seconds - a.seconds);
  const rows = results.map(({ name, seconds, cpuSeconds, passed, failed }) => [
    name,
    seconds,
    cpuSeconds,
    passed,
    failed,
  ]);
  process.stdout.write(`\n${table(['step', 'seconds', 'processor', 'passed', 'failed'], rows)}`);
  const slowest = files.slice(0, SLOWEST).map(({ file, tests, seconds }) => [file, seconds.toFixed(1), tests]);
  process.stdout.write(`\n${table(['slowest test files', 'seconds', 'tests'], slowest)}`);
  const sum = (key) => results.reduce((total, result) => total + result[key], 0);
  process.stdout.write(`\nall steps took ${secondsSoFar()} s\n`);
  process.stdout.write(`${sum('passed')} passed, ${sum('failed')} failed\n`);
  process.exit(sum('failed') === 0 && sum('passed') > 0 ? 0 : 1);
}
