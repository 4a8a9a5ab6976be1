// npm run fuzz -- [protocol | bridge | state | all | TARGET] [--minutes N | --seconds N] [--seed S]
//   tries inputs on every target of the group, which share that time (10 minutes a group when none is given). The same seed
//   begins the same way. An input that fails is written to .cache/fuzz and printed with how to repeat it.
// npm run fuzz -- TARGET --input FILE
//   runs one input.
// npm run fuzz -- TARGET|GROUP --seconds N --write-corpus
//   also adds the target's own seeds, and a few of the inputs that reached new code, to the corpus in the repository.
// Closes with one line that says how many targets passed and failed.
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { register } from 'node:module';
import { parseArgs } from 'node:util';
import { fuzz, TargetProcess } from '../packages/testing/dist/index.js';
import { GROUPS, groupOf, targetsOf } from './lib/fuzz/targets.mjs';
import { ROOT, fail, say } from './lib/run.mjs';

const FINDINGS = '.cache/fuzz';
const MAX_INPUT_BYTES = 4096;
/** Of what a run finds, this much is worth keeping in the repository. */
const [KEPT_FILES, KEPT_BYTES] = [16, 512];

const { positionals, values } = parseArgs({
  allowPositionals: true,
  options: {
    minutes: { type: 'string' },
    seconds: { type: 'string' },
    seed: { type: 'string' },
    input: { type: 'string' },
    'write-corpus': { type: 'boolean', default: false },
  },
});
const [name = 'all', ...more] = positionals;
const targets = targetsOf(name);
const known = [...Object.keys(GROUPS), ...targetsOf('all').map((target) => target.name)];
if (targets.length === 0 || more.length > 0) fail(`fuzz one of: all, ${known.join(', ')}`);
const groupMs = durationOf(values);
const seed = numberOf('seed', values.seed ?? String(Date.now() % 1_000_000));

let failed = 0;
for (const target of targets) {
  const passed = values.input === undefined ? await fuzzed(target) : await repeated(target, values.input);
  if (!passed) failed += 1;
}
process.stdout.write(`${targets.length - failed} passed, ${failed} failed\n`);
process.exit(failed === 0 ? 0 : 1);

async function fuzzed(target) {
  if (values['write-corpus']) await writeSeeds(target);
  const corpus = readCorpus(target);
  const durationMs = groupMs / groupOf(target).filter((other) => targets.includes(other)).length;
  const options = { target: await target.prepare(), corpus, seed, durationMs, maxInputBytes: MAX_INPUT_BYTES };
  const { executions, kept, failure } = await fuzz(options);
  say(
    `${target.name}: ${executions} inputs in ${Math.round(durationMs / 1000)} s, ${kept.length} reached new code (seed ${seed})`,
  );
  if (values['write-corpus']) writeKept(target, kept);
  if (failure === null) return true;
  const path = `${FINDINGS}/${target.name}-${digestOf(failure.input)}`;
  mkdirSync(`${ROOT}/${FINDINGS}`, { recursive: true });
  writeFileSync(`${ROOT}/${path}`, failure.input);
  report(target, failure.message, path);
  return false;
}

async function repeated(target, path) {
  const process_ = await TargetProcess.start(await target.prepare());
  const [outcome] = await process_.run([readFileSync(path)]);
  await process_.stop();
  if (outcome.kind !== 'failed') return true;
  report(target, outcome.message, path);
  return false;
}

function report(target, message, path) {
  say(`${target.name} FAILED: ${message.trim()}`);
  say(
    `repeat it: npm run fuzz -- ${target.name} --input ${path}; once it is mended, move the file to ${target.corpus}`,
  );
}

function readCorpus({ corpus }) {
  const folder = `${ROOT}/${corpus}`;
  if (!existsSync(folder)) return [];
  return readdirSync(folder)
    .sort()
    .map((file) => readFileSync(`${folder}/${file}`));
}

async function writeSeeds({ module, corpus }) {
  if (module === null) return;
  globalThis.__reached = () => undefined;
  register('./lib/fuzz/typescript-loader.mjs', import.meta.url);
  const { seeds } = await import(`../${module}`);
  for (const [file, bytes] of seeds()) writeInput(corpus, file, bytes);
}

/** The shortest ones; the corpus had what its own files reach already. */
function writeKept({ corpus }, kept) {
  const files = new Set(existsSync(`${ROOT}/${corpus}`) ? readdirSync(`${ROOT}/${corpus}`) : []);
  const room = KEPT_FILES - [...files].filter((file) => file.startsWith('found-')).length;
  const found = kept.filter((input) => input.length <= KEPT_BYTES).sort((a, b) => a.length - b.length);
  for (const input of found.slice(0, Math.max(0, room))) {
    writeInput(corpus, `found-${digestOf(input)}`, input);
  }
}

function writeInput(corpus, file, bytes) {
  mkdirSync(`${ROOT}/${corpus}`, { recursive: true });
  writeFileSync(`${ROOT}/${corpus}/${file}`, bytes);
}

function digestOf(bytes) {
  return createHash('sha256').update(bytes).digest('hex').slice(0, 12);
}

function durationOf({ minutes, seconds }) {
  if (minutes !== undefined && seconds !== undefined) fail('give --minutes or --seconds, not both');
  return seconds === undefined ? 60_000 * numberOf('minutes', minutes ?? '10') : 1_000 * numberOf('seconds', seconds);
}

function numberOf(option, text) {
  const number = Number(text);
  if (!Number.isFinite(number) || number < 0) fail(`--${option} must be a number, not ${text}`);
  return number;
}
