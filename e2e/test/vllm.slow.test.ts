// Real vLLM on the CPU prefills, llama.cpp decodes: answers, cancels. Faults are in vllm-faults. Installs vLLM when it is not there.
import { execFileSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { loadModel } from '@muser/metal';
import { needleDocument, type NeedleDocument } from '@muser/testing';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Dev, eventually, isAlive, muser, startMuser } from './support/muser.js';

const inRepository = (path: string): string => fileURLToPath(new URL(`../../${path}`, import.meta.url));

/** Importing vLLM alone takes a minute on a busy machine with two cores. */
const START_MS = 900_000;
const QUESTIONS = 20;
const SHORTEST = 300;
const LONGEST = 16_000;
const ATTEMPTS = 3;

interface Asked {
  answer: string;
  prefill: string;
  fallback: { code: string; message: string } | null;
  promptTokens: number;
  ttftMs: number;
  kvBytes: number;
}

let folder: string;
let dev: Dev;
let needles: { file: string; needle: NeedleDocument }[];

beforeAll(async () => {
  execFileSync(process.execPath, [inRepository('scripts/vllm-env.mjs'), '--quiet'], { stdio: 'inherit' });
  folder = await mkdtemp(join(tmpdir(), 'muser-vllm-e2e-'));
  needles = await writeNeedles(folder);
  dev = await Dev.start(join(folder, 'state'), '--producer', 'vllm');
}, START_MS);

afterAll(async () => {
  const pids = workerPids();
  await dev.destroy();
  await eventually('the worker and its children end', () => !pids.some(isAlive));
  await rm(folder, { recursive: true, force: true });
}, 120_000);

/** From the shortest to the longest, evenly by ratio. */
async function writeNeedles(to: string): Promise<{ file: string; needle: NeedleDocument }[]> {
  const model = await loadModel(inRepository('models/muse-nano/muse-nano-q8_0.gguf'));
  const tokenCount = (text: string): number => model.tokenize(text, { special: false }).length;
  const made = Array.from({ length: QUESTIONS }, (_, index) => {
    const approximateTokens = Math.round(SHORTEST * (LONGEST / SHORTEST) ** (index / (QUESTIONS - 1)));
    return {
      file: join(to, `${index}.txt`),
      needle: needleDocument({ seed: index + 1, approximateTokens, tokenCount }),
    };
  });
  model.close();
  for (const { file, needle } of made) await writeFile(file, needle.text);
  return made;
}

const askArguments = (file: string, question: string, way: string): string[] => {
  return ['ask', '--json', '--state', dev.state, '--timeout', '300', way, '-f', file, question];
};

async function ask(index: number, way: '--local' | '--remote-prefill'): Promise<Asked> {
  const { file, needle } = needles[index] as (typeof needles)[number];
  const run = await muser(askArguments(file, needle.question, way), { timeout: 400_000 });
  expect(run, run.stderr).toMatchObject({ exitCode: 0 });
  return JSON.parse(run.stdout) as Asked;
}

/** On a machine that is too busy, processes lose sight of one another for a moment; a fallback for that is asked again. */
async function askRemote(index: number): Promise<Asked> {
  for (let attempt = 1; ; attempt += 1) {
    const asked = await ask(index, '--remote-prefill');
    if (asked.fallback === null || attempt === ATTEMPTS) return asked;
    process.stderr.write(`question ${index} fell back: ${asked.fallback.code}, ${asked.fallback.message}\n`);
  }
}

/** Every process below the producer, first the worker. */
function workerPids(): number[] {
  const parents = readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .flatMap((name) => {
      try {
        const stat = readFileSync(`/proc/${name}/stat`, 'utf8');
        return [{ pid: Number(name), parent: Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1]) }];
      } catch {
        return [];
      }
    });
  const below = (pid: number): number[] =>
    parents.filter(({ parent }) => parent === pid).flatMap((child) => [child.pid, ...below(child.pid)]);
  return below(dev.ready.pids.producer);
}

describe('a hand-off from vLLM to llama.cpp', () => {
  it('answers as a local prefill does, from 300 to 16,000 tokens', { timeout: 3_600_000 }, async () => {
    let equal = 0;
    let right = 0;
    const differing: object[] = [];
    for (const [index, { needle }] of needles.entries()) {
      const remote = await askRemote(index);
      expect(remote, `question ${index}`).toMatchObject({ prefill: 'remote', fallback: null });
      expect(remote.kvBytes).toBeGreaterThan(0);
      const local = await ask(index, '--local');
      if (remote.answer === local.answer) equal += 1;
      else differing.push({ index, tokens: remote.promptTokens, remote: remote.answer, local: local.answer });
      if (remote.answer.includes(needle.value)) right += 1;
    }
    process.stderr.write(`${equal} of ${QUESTIONS} equal, ${right} right\n`);
    expect(equal, JSON.stringify(differing)).toBeGreaterThanOrEqual(19);
    expect(right).toBeGreaterThanOrEqual(18);
  });

  it('serves four at once', { timeout: 900_000 }, async () => {
    const chosen = [5, 8, 11, 13];
    const answers = await Promise.all(chosen.map((index) => askRemote(index)));
    for (const [nth, index] of chosen.entries()) {
      expect(answers[nth]?.answer).toContain(needles[index]?.needle.value);
      expect(answers[nth]).toMatchObject({ prefill: 'remote', fallback: null });
    }
  });

  it('is not delayed by ten that were cancelled', { timeout: 900_000 }, async () => {
    const before = await askRemote(4);
    const { file } = needles[QUESTIONS - 1] as (typeof needles)[number];
    for (let nth = 0; nth < 10; nth += 1) {
      const child = startMuser(askArguments(file, `Number ${nth}?`, '--remote-prefill'));
      await delay(700);
      child.kill('SIGKILL');
      await child;
    }
    const after = await askRemote(3);
    expect(after).toMatchObject({ prefill: 'remote', fallback: null });
    process.stderr.write(`ttft before ${before.ttftMs} ms, after ten cancels ${after.ttftMs} ms\n`);
  });
});
