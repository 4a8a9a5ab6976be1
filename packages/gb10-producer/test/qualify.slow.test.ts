// Real vLLM on the CPU against llama.cpp: every layer's rows for each chunk size, after prefix-cache hits, and after
// preemption in a cache that is too small for what runs. Needs the environment that `npm run vllm` installs.
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { loadModel, type Model } from '@muser/metal';
import { createLogger } from '@muser/service-kit';
import { needleDocument } from '@muser/testing';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import { checkpointDigest } from '../src/backend/checkpoint.js';
import { LlamaBackend } from '../src/backend/llama.js';
import { vllmSettings } from '../src/backend/open-backend.js';
import { VllmBackend } from '../src/backend/vllm.js';
import { VllmRun } from '../src/backend/vllm-run.js';
import type { PrefillBackend, PrefillRun, PrefillTask } from '../src/backend/backend.js';
import { producerConfigSchema, VLLM_PYTHON } from '../src/config.js';
import { compareRows } from '../src/qualify/compare.js';
import { Decoder } from '../src/qualify/decoder.js';
import { kindsBeyond, limitsOf } from '../src/qualify/judge.js';
import { prefillRows, type PromptRows } from '../src/rows/prompt-rows.js';
import { qualificationPrompts, type QualificationPrompt } from '../src/qualify/prompts.js';
import { qualify } from '../src/qualify/qualify.js';
import { thresholdsFor } from '../src/qualify/thresholds.js';
import { MUSE_NANO, MUSE_NANO_HF, MUSE_NANO_WIDE } from './support/model.js';

const START_LIMIT_MS = 300_000;
const LONGEST = 2304;
/** One block of one layer group: two layers' K and V, 128 tokens, two heads of 64 elements, two bytes. */
const BLOCK_BYTES = 2 * 2 * 128 * 2 * 64 * 2;
/** Two prefills of this length do not fit into 64 blocks beside one another. */
const SCARCE_BLOCKS = 64;

// vLLM gives one request all of a step's tokens, so that prefills follow one another and never compete. This start-up
// divides the step: each request gets 128 of its tokens, also when it is alone.
const DIVIDED = `
if __name__ == "__main__":
    import muser_vllm.engine as engine
    import muser_vllm.worker as worker
    original = engine.engine_arguments
    def divided(*arguments):
        result = original(*arguments)
        result.long_prefill_token_threshold = 128
        return result
    engine.engine_arguments = divided
    worker.main()
`;

let folder: string;
let model: Model;
let prompts: readonly QualificationPrompt[];
let reference: LlamaBackend;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'muser-qualify-'));
  await writeFile(join(folder, 'divided.py'), DIVIDED);
  model = await loadModel(MUSE_NANO);
  prompts = qualificationPrompts((text) => model.tokenize(text, { special: true }), 512);
  reference = await openLlama(MUSE_NANO);
});

afterAll(async () => {
  await reference.close();
  model.close();
  await rm(folder, { recursive: true });
});

function openLlama(modelPath: string): Promise<LlamaBackend> {
  return LlamaBackend.open({
    modelPath,
    modelDigest: new Uint8Array(32).fill(7),
    chunkTokens: 512,
    maxPromptTokens: LONGEST,
    maxConcurrent: 1,
    threads: 1,
    flashAttention: true,
    kvType: 'f16',
    tokensPerSecond: null,
  });
}

async function openVllm(chunkTokens: number, scarce = false): Promise<VllmBackend> {
  const config = producerConfigSchema.parse({
    stateDir: folder,
    backend: 'vllm',
    model: MUSE_NANO_HF,
    chunkTokens,
    maxPromptTokens: LONGEST,
    maxConcurrent: scarce ? 4 : 1,
    threads: 1,
    vllm: { hangLimitMs: 120_000, ...(scarce ? { kvCacheBytes: SCARCE_BLOCKS * BLOCK_BYTES } : {}) },
  });
  return VllmBackend.open(
    {
      modelPath: config.model,
      modelDigest: await checkpointDigest(config.model, folder),
      python: process.env['MUSER_TEST_PYTHON'] ?? VLLM_PYTHON,
      args: scarce ? [join(folder, 'divided.py')] : ['-m', 'muser_vllm.worker'],
      settings: vllmSettings(config),
      workerFile: null,
      maxPromptTokens: config.maxPromptTokens,
      maxConcurrent: config.maxConcurrent,
      startLimitMs: START_LIMIT_MS,
      hangLimitMs: config.vllm.hangLimitMs,
      restartPausesMs: [],
      idleUnloadMs: null,
      memoryFloorBytes: 0,
      onMilestone: () => undefined,
      logger: createLogger('producer', process.env['MUSER_TEST_LOG'] === '1' ? 'debug' : 'silent'),
    },
    new AbortController().signal,
  );
}

const prefill = (backend: PrefillBackend, tokens: Uint32Array, cacheScope: string): ReturnType<typeof prefillRows> =>
  prefillRows(backend, tokens, { cacheScope, signal: new AbortController().signal });

/** Layers whose K or V is beyond the limits of bf16 with Q8_0. */
function beyondLimits(rows: PromptRows, expected: PromptRows): string[] {
  const { layers } = expected.geometry;
  const limits = limitsOf(thresholdsFor('bf16', 'q8_0').thresholds, layers.length);
  return compareRows(rows, expected).flatMap((figures, layer) => {
    const limit = limits[layer];
    return limit === undefined ? [] : kindsBeyond(figures, limit).map((kind) => `${layer}${kind}`);
  });
}

/** Remembers the runs of a backend. */
function watched(backend: PrefillBackend, runs: PrefillRun[]): Pick<PrefillBackend, 'model' | 'limits' | 'prefill'> {
  const { model, limits } = backend;
  return {
    model,
    limits,
    prefill(task: PrefillTask) {
      const run = backend.prefill(task);
      runs.push(run);
      return run;
    },
  };
}

describe('vLLM in chunks of 512', () => {
  let vllm: VllmBackend;
  beforeAll(async () => (vllm = await openVllm(512)), START_LIMIT_MS);
  afterAll(() => vllm.close());

  it.each([
    ['q8_0', MUSE_NANO],
    ['q4_k_m', MUSE_NANO_WIDE],
  ])('qualifies with %s weights on the decoder', async (weights, path) => {
    const ownModel = await loadModel(path);
    const llama = await openLlama(path);
    const decoder = await Decoder.create(ownModel, {
      promptTokens: LONGEST,
      chunkTokens: 512,
      threads: 1,
      flashAttention: true,
    });
    try {
      const record = await qualify({
        producer: vllm,
        reference: llama,
        decoder,
        prompts,
        weights: { producer: 'bf16', reference: weights },
        version: '0',
        cacheScope: weights,
        signal: new AbortController().signal,
      });
      expect(record).toMatchObject({ verdict: 'passed', failures: [], cause: null });
      expect(record.thresholds).toMatchObject({ exact: true, basis: 'measured' });
      expect(record.producer).toMatchObject({ backend: 'vllm', version: '0.32.0' });
      expect(record.producer.cacheLayout).toMatch(/^CPU_ATTN/);
      if (process.env['MUSER_TEST_LOG'] === '1') process.stdout.write(`${JSON.stringify(record)}\n`);
    } finally {
      await decoder.close();
      await llama.close();
      ownModel.close();
    }
  });

  it('gives right rows behind a prefix that it had', async () => {
    const long = prompts[4]?.tokens ?? new Uint32Array();
    const prefix = long.subarray(0, 1500);
    const first = await prefill(vllm, prefix, 'hit');
    const { rows, reusedTokens } = await prefill(vllm, long, 'hit');
    expect(first.reusedTokens).toBe(0);
    expect(reusedTokens).toBeGreaterThanOrEqual(1024);
    const cached = { start: 0, end: reusedTokens };
    for (const layer of rows.geometry.layers.flatMap((kind, index) => (kind === 'global' ? [index] : []))) {
      for (const kind of ['k', 'v'] as const) {
        const same = Buffer.compare(rows.bytes(layer, kind, cached), first.rows.bytes(layer, kind, cached));
        expect([layer, kind, same]).toEqual([layer, kind, 0]);
      }
    }
    expect(beyondLimits(rows, (await prefill(reference, long, 'hit')).rows)).toEqual([]);
  });
});

describe('vLLM in chunks of 97', () => {
  let vllm: VllmBackend;
  beforeAll(async () => (vllm = await openVllm(97)), START_LIMIT_MS);
  afterAll(() => vllm.close());

  it('has the same rows as llama.cpp', async () => {
    for (const { tokens } of prompts) {
      const [own, expected] = [await prefill(vllm, tokens, 'odd'), await prefill(reference, tokens, 'odd')];
      expect(beyondLimits(own.rows, expected.rows)).toEqual([]);
    }
  });
});

describe('vLLM in chunks of 128, with hardly any KV memory', () => {
  let vllm: VllmBackend;
  beforeAll(async () => (vllm = await openVllm(512, true)), START_LIMIT_MS);
  afterAll(() => vllm.close());

  it('has the same rows as llama.cpp', async () => {
    for (const { tokens } of prompts) {
      const [own, expected] = [await prefill(vllm, tokens, 'small'), await prefill(reference, tokens, 'small')];
      expect(beyondLimits(own.rows, expected.rows)).toEqual([]);
    }
  });

  it('has them after prefills pushed one another out', async () => {
    const documents = [1, 2, 3, 4].map((seed) => {
      const tokenCount = (text: string): number => model.tokenize(text, { special: false }).length;
      const { text } = needleDocument({ seed, approximateTokens: 2300, tokenCount });
      return Uint32Array.from(model.tokenize(text, { special: false })).subarray(0, 2100);
    });
    const runs: PrefillRun[] = [];
    const source = watched(vllm, runs) as PrefillBackend;
    const results = await Promise.allSettled(
      documents.map((tokens, index) => prefill(source, tokens, `pushed-${index}`)),
    );
    const preemptions = runs.map((run) => (run instanceof VllmRun ? run.preemptions : 0));
    const compared: number[] = [];
    for (const [index, result] of results.entries()) {
      // What was being sent when it was pushed out ends, and the decoder goes on by itself.
      if (result.status === 'rejected') expect(result.reason).toMatchObject({ code: 'CONTEXT_FULL' });
      else {
        const expected = await prefill(reference, documents[index] ?? new Uint32Array(), 'pushed');
        expect(beyondLimits(result.value.rows, expected.rows)).toEqual([]);
        compared.push(index);
      }
    }
    const pushedOut = preemptions.some((count) => count > 0) || compared.length < documents.length;
    expect(pushedOut, 'the cache was not small enough').toBe(true);
    expect(compared.length).toBeGreaterThan(0);
  });
});
