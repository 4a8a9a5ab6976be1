// Real vLLM on the CPU: what cancels cost, and an engine that dies in the midst of a prompt and quotes it.
import { readFileSync } from 'node:fs';
import { type FileHandle, mkdtemp, open, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

import { loadModel } from '@muser/metal';
import { MuserError } from '@muser/protocol';
import { createLogger, flushLogger, type Logger } from '@muser/service-kit';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import type { PrefillRun, PrefillTask } from '../src/backend/backend.js';
import { vllmSettings } from '../src/backend/open-backend.js';
import { VllmBackend } from '../src/backend/vllm.js';
import { producerConfigSchema, VLLM_PYTHON } from '../src/config.js';
import { MUSE_NANO } from './support/model.js';
import { CountingBudget, promptTokens } from './support/rows.js';

const CHECKPOINT = fileURLToPath(new URL('../../../models/muse-nano/hf', import.meta.url));
const HANDBOOK = fileURLToPath(new URL('../../../models/muse-nano/handbook.md', import.meta.url));
const FAILING_STEP = fileURLToPath(new URL('support/failing_step.py', import.meta.url));
const START_LIMIT_MS = 600_000;
const LONG = 16_000;
const CANCELS = 10;
/** First tokens at which failing_step.py fails, and with which error. */
const FAILURES = [
  [101, 'ENGINE_FAILED', 'RuntimeError'],
  [102, 'OUT_OF_MEMORY', 'OutOfMemoryError'],
] as const;

let folder: string;
let logFile: string;
let log: FileHandle;
let logger: Logger;
let vllm: VllmBackend;
/** The beginning of the handbook. */
let prompt: Uint32Array;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'muser-vllm-failures-'));
  logFile = join(folder, 'log');
  const config = producerConfigSchema.parse({
    stateDir: folder,
    backend: 'vllm',
    model: CHECKPOINT,
    threads: 1,
    maxPromptTokens: LONG + 2,
    // A long prompt takes 153 of these 192 blocks, so the last one would find none if cancelled ones kept theirs.
    vllm: { kvCacheBytes: 24 << 20 },
  });
  log = await open(logFile, 'w');
  logger = createLogger('producer', 'trace', log.fd);
  const model = await loadModel(MUSE_NANO);
  prompt = Uint32Array.from(model.tokenize(readFileSync(HANDBOOK, 'utf8'), { special: false }).slice(0, 3_000));
  model.close();
  vllm = await VllmBackend.open(
    {
      modelPath: CHECKPOINT,
      modelDigest: new Uint8Array(32),
      python: process.env['MUSER_TEST_PYTHON'] ?? VLLM_PYTHON,
      args: [FAILING_STEP],
      settings: vllmSettings(config),
      workerFile: null,
      maxPromptTokens: LONG + 2,
      maxConcurrent: 2,
      startLimitMs: START_LIMIT_MS,
      hangLimitMs: 120_000,
      restartPausesMs: [0, 0],
      idleUnloadMs: null,
      memoryFloorBytes: 0,
      onMilestone: () => undefined,
      logger,
    },
    new AbortController().signal,
  );
}, START_LIMIT_MS);

afterAll(async () => {
  await vllm.close();
  await log.close();
  await rm(folder, { recursive: true });
}, 60_000);

function start(tokens: Uint32Array, more: Partial<PrefillTask> = {}): PrefillRun {
  return vllm.prefill({
    tokens,
    heldTokens: 0,
    chunkTokens: 0,
    wireType: 'bf16',
    cacheScope: 'failures',
    staging: new CountingBudget(1 << 30),
    signal: new AbortController().signal,
    ...more,
  });
}

async function consume(run: PrefillRun): Promise<number> {
  let end = 0;
  for await (const chunk of run) {
    ({ end } = chunk);
    chunk.release();
  }
  return end;
}

const random = (length: number, seed: number): Uint32Array =>
  promptTokens(length, vllm.model.geometry.vocabularySize, seed).map((token) => Math.max(token, 200));

async function timed<T>(work: () => Promise<T>): Promise<number> {
  const started = performance.now();
  await work();
  return performance.now() - started;
}

describe('vLLM', () => {
  // fault: held-after-abort
  it(`has its blocks back after ${CANCELS} cancelled prefills of ${LONG} tokens`, { timeout: 300_000 }, async () => {
    await consume(start(random(1_000, 1)));
    const undisturbedMs = await timed(() => consume(start(random(1_000, 2))));
    const stops: number[] = [];
    for (let nth = 0; nth < CANCELS; nth += 1) {
      const controller = new AbortController();
      const run = start(random(LONG, 10 + nth), { signal: controller.signal, cacheScope: `cancelled ${nth}` });
      const chunks = run[Symbol.asyncIterator]();
      const first = await chunks.next();
      if (first.done !== true) first.value.release();
      stops.push(
        await timed(() => {
          controller.abort(new MuserError('CANCELLED', 'test'));
          return run.computed;
        }),
      );
      await expect(chunks.next()).rejects.toMatchObject({ code: 'CANCELLED' });
    }
    const nextMs = await timed(() => consume(start(random(1_000, 3))));
    const format = (ms: number): string => ms.toFixed(0);
    process.stderr.write(
      `1,000 tokens: undisturbed ${format(undisturbedMs)} ms, after ${CANCELS} cancels ${format(nextMs)} ms; ` +
        `a cancel took at most ${format(Math.max(...stops))} ms\n`,
    );
    // It needs almost all blocks.
    expect(await consume(start(random(LONG, 99)))).toBe(LONG - 1);
  });
});

describe('an engine that dies in the midst of a prompt', () => {
  it.each(FAILURES)(
    'that begins with %i is replaced, and says %s',
    { timeout: START_LIMIT_MS },
    async (first, code) => {
      const [worker] = vllm.workerPids;
      const tokens = Uint32Array.of(first, ...prompt);
      const failed = await consume(start(tokens)).catch((error: unknown) => error);
      // A rank that still can says so at once; why is known a moment later, and in the log.
      expect(failed).toBeInstanceOf(MuserError);
      expect(['ENGINE_FAILED', code]).toContain((failed as MuserError).code);
      expect(String(failed)).toMatch(/vLLM failed|the engine has died/);
      expect(numbersOf(String(failed))).toEqual([]);
      while (vllm.workerPids.length === 0 || vllm.workerPids[0] === worker) await delay(50);
      expect(await consume(start(prompt))).toBe(prompt.length - 1);
    },
  );

  it('leaves nothing of the prompt in the log, but the reason', async () => {
    await flushLogger(logger);
    const text = await readFile(logFile, 'utf8');
    for (const [, , error] of FAILURES) expect(text).toMatch(new RegExp(`${error}: cannot compute \\[#`));
    expect(text).toMatch(/"cause":"died".*"cause":"out-of-memory"/s);
    const quoted = new Set(runsOf(Array.from(prompt, String)));
    const told = text.split('\n').flatMap((line) => runsOf(numbersOf(line)));
    expect(told.filter((run) => quoted.has(run))).toEqual([]);
    const words =
      readFileSync(HANDBOOK, 'utf8')
        .slice(0, 10_000)
        .match(/\b[A-Z][a-z]{6,}\b/g) ?? [];
    expect(words.filter((word) => word.length > 8 && text.includes(word))).toEqual([]);
  });
});

const numbersOf = (text: string): string[] => text.match(/\d+/g) ?? [];

/** Of four numbers, which are no accident: a date has fewer in the same order. */
const runsOf = (numbers: string[]): string[] =>
  numbers.slice(3).map((_, index) => numbers.slice(index, index + 4).join(' '));
