// Real llama.cpp on both sides. Rows that are wrong come from the engine itself, with a model or a prompt that is wrong in
// one respect, or are the engine's own rows in another order.
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { loadModel, type Model } from '@muser/metal';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import type { PrefillBackend, PrefillChunk } from '../src/backend/backend.js';
import { LlamaBackend, type LlamaOptions } from '../src/backend/llama.js';
import { Decoder } from '../src/qualify/decoder.js';
import { qualificationPrompts, type QualificationPrompt } from '../src/qualify/prompts.js';
import { qualify } from '../src/qualify/qualify.js';
import type { Cause, QualificationRecord } from '../src/qualify/record.js';
import { GgufPatch } from './support/gguf-patch.js';
import { MUSE_NANO, MUSE_NANO_WIDE } from './support/model.js';
import { changeRows, reading, type Wrong, WrongBackend } from './support/wrong-backend.js';

const OPTIONS: LlamaOptions = {
  modelPath: MUSE_NANO,
  modelDigest: new Uint8Array(32).fill(7),
  chunkTokens: 512,
  maxPromptTokens: 2400,
  maxConcurrent: 1,
  threads: 1,
  flashAttention: true,
  kvType: 'f16',
  tokensPerSecond: null,
};
const ARCHITECTURE = 'muse-glimmer';

let folder: string;
let model: Model;
let reference: LlamaBackend;
let decoder: Decoder;
let prompts: readonly QualificationPrompt[];

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'muser-qualify-'));
  model = await loadModel(MUSE_NANO);
  reference = await LlamaBackend.open(OPTIONS);
  decoder = await Decoder.create(model, { promptTokens: 2400, chunkTokens: 512, threads: 1, flashAttention: true });
  prompts = qualificationPrompts((text) => model.tokenize(text, { special: true }), 512);
});

afterAll(async () => {
  await decoder.close();
  await reference.close();
  model.close();
  await rm(folder, { recursive: true });
});

async function judge(producer: PrefillBackend, which: readonly number[]): Promise<QualificationRecord> {
  return qualify({
    producer,
    reference,
    decoder,
    prompts: prompts.filter((_, index) => which.includes(index)),
    weights: { producer: 'q8_0', reference: 'q8_0' },
    version: '0',
    cacheScope: 'test',
    signal: new AbortController().signal,
  });
}

const judgeWrong = (wrong: Wrong, which: readonly number[]): Promise<QualificationRecord> =>
  judge(new WrongBackend(reference, wrong), which);

/** A model that is changed, in an engine that says that it has the right one. */
async function judgeChanged(
  change: (file: GgufPatch) => GgufPatch,
  which: readonly number[],
  honest = false,
): Promise<QualificationRecord> {
  const modelPath = join(folder, 'changed.gguf');
  await change(await GgufPatch.read(MUSE_NANO)).write(modelPath);
  const backend = await LlamaBackend.open({ ...OPTIONS, modelPath });
  try {
    return await judge(honest ? backend : new WrongBackend(backend, { model: reference.model }), which);
  } finally {
    await backend.close();
    await rm(modelPath);
  }
}

const failsWith = (layer: number, cause: Cause, detail: RegExp): unknown =>
  expect.objectContaining({
    verdict: 'failed',
    cause: expect.objectContaining({ layer, cause, detail: expect.stringMatching(detail) as string }) as unknown,
  });

describe('qualification', () => {
  it('has prompts below a window, beyond one, and of several chunks and windows, the same ones each time', () => {
    const lengths = prompts.map(({ tokens }) => tokens.length);
    expect(lengths[0]).toBeLessThan(512);
    expect(lengths[2]).toBeGreaterThan(512);
    expect(lengths[4]).toBeGreaterThan(4 * 512);
    const again = qualificationPrompts((text) => model.tokenize(text, { special: true }), 512);
    expect(again).toEqual(prompts);
  });

  it('passes an engine that has the same rows, with the same answers', async () => {
    const record = await judge(reference, [0, 1, 2, 3, 4]);
    expect(record).toMatchObject({ verdict: 'passed', failures: [], cause: null });
    for (const { k, v } of record.layers) expect([k.distance, v.distance]).toEqual([0, 0]);
    for (const { answer } of record.prompts) {
      expect(answer).toMatchObject({ logitDifference: 0, sameFirstToken: true });
      // Each answer is a sentence of the document, so a decoder that saw nothing would not have it.
      expect(answer?.equalTokens).toBeGreaterThan(10);
      expect(answer?.equalTokens).toBe(answer?.comparedTokens);
    }
  });

  it('judges 4-bit weights by limits of their own', async () => {
    const wide = await LlamaBackend.open({ ...OPTIONS, modelPath: MUSE_NANO_WIDE });
    const wideModel = await loadModel(MUSE_NANO_WIDE);
    const wideDecoder = await Decoder.create(wideModel, {
      promptTokens: 2400,
      chunkTokens: 512,
      threads: 1,
      flashAttention: true,
    });
    const common = { version: '0', cacheScope: 'test', signal: new AbortController().signal };
    const sides = { producer: reference, reference: wide, decoder: wideDecoder, prompts: prompts.slice(0, 3) };
    try {
      const own = await qualify({ ...common, ...sides, weights: { producer: 'q8_0', reference: 'q4_k_m' } });
      expect(own.failures).toEqual([]);
      const other = await qualify({ ...common, ...sides, weights: { producer: 'q8_0', reference: 'q5_0' } });
      expect(other).toMatchObject({ verdict: 'failed', thresholds: { exact: false, reference: 'q8_0' } });
      expect(other.cause).toMatchObject({ layer: 0, cause: 'weights', detail: expect.stringMatching(/^similar/) });
    } finally {
      await wideDecoder.close();
      await wide.close();
      wideModel.close();
    }
  });
});

describe('a pair that fails', () => {
  const { kvHeads, headDimension } = { kvHeads: 2, headDimension: 64 };
  const half = headDimension / 2;

  it('by the order of elements in K', async () => {
    const interleave = (row: Uint16Array): void => {
      const before = Uint16Array.from(row);
      for (let head = 0; head < kvHeads * headDimension; head += headDimension) {
        for (let pair = 0; pair < half; pair += 1) {
          row[head + 2 * pair] = before[head + pair] ?? 0;
          row[head + 2 * pair + 1] = before[head + pair + half] ?? 0;
        }
      }
    };
    const wrong = changeRows(reference.model.geometry, (row, _, kind) => kind === 'k' && interleave(row));
    expect(await judgeWrong(wrong, [0])).toEqual(failsWith(0, 'k-permutation', /interleaved/));
  });

  it('by the order of elements in K of global layers alone', async () => {
    const swapHalves = (row: Uint16Array): void => {
      const before = Uint16Array.from(row);
      row.forEach((_, at) => {
        const element = at % headDimension;
        row[at] = before[at - element + (element % 2) * half + Math.floor(element / 2)] ?? 0;
      });
    };
    const wrong = changeRows(reference.model.geometry, (row, layer, kind) => {
      if (kind === 'k' && reference.model.geometry.layers[layer] === 'global') swapHalves(row);
    });
    expect(await judgeWrong(wrong, [1])).toEqual(failsWith(3, 'k-permutation', /other order|another order/));
  });

  it('by K taken for V', async () => {
    const exchange = (chunk: PrefillChunk): PrefillChunk =>
      reading(chunk, (plan, target) => {
        const parts = plan.parts.map(({ layer, kind }) => ({
          layer,
          kind: kind === 'k' ? ('v' as const) : ('k' as const),
        }));
        return chunk.readShard({ ...plan, parts }, target);
      });
    expect(await judgeWrong({ chunk: exchange }, [0])).toEqual(failsWith(0, 'exchanged', /taken for the other/));
  });

  // fault: silent-wrong-rows
  it('by the order of KV heads', async () => {
    const wrong = changeRows(reference.model.geometry, (row) => {
      const before = Uint16Array.from(row);
      row.set(before.subarray(headDimension), 0);
      row.set(before.subarray(0, headDimension), headDimension);
    });
    expect(await judgeWrong(wrong, [0])).toEqual(
      failsWith(0, 'head-order', /K has the order 1, 0; V has the order 1, 0/),
    );
  });

  it('by rows of the token before', async () => {
    // The first token twice, and the last row is lost.
    const wrong: Wrong = {
      task: (task) => ({ ...task, tokens: Uint32Array.from([task.tokens[0] ?? 0, ...task.tokens.subarray(0, -1)]) }),
    };
    expect(await judgeWrong(wrong, [0])).toEqual(failsWith(0, 'position-shift', /moved by 1/));
  });

  it('by keys that are rotated for the next position', async () => {
    const wrong: Wrong = {
      task: (task) => ({ ...task, tokens: Uint32Array.from([task.tokens[0] ?? 0, ...task.tokens]), heldTokens: 1 }),
      chunk: (chunk) => ({
        ...chunk,
        start: chunk.start - 1,
        end: chunk.end - 1,
        windowStart: chunk.windowStart - 1,
        readShard: (plan, target) => chunk.readShard({ ...plan, tokenStart: plan.tokenStart + 1 }, target),
        release: () => chunk.release(),
      }),
    };
    expect(await judgeWrong(wrong, [0])).toEqual(failsWith(0, 'position-shift', /1 too great/));
  });

  it.each([10_000, 400_000, 1_000_000])('by a RoPE base of %i', async (base) => {
    const record = await judgeChanged((file) => file.setNumber(`${ARCHITECTURE}.rope.freq_base`, base), [0]);
    expect(record).toEqual(failsWith(0, 'rope-base', /the reference has 500000/));
    const found = Number(/rotated by base (\d+)/.exec(record.cause?.detail ?? '')?.[1]);
    expect(Math.abs(found / base - 1)).toBeLessThan(0.02);
  });

  it('by a RoPE base that it admits', async () => {
    const record = await judgeChanged((file) => file.setNumber(`${ARCHITECTURE}.rope.freq_base`, 10_000), [0], true);
    expect(record).toEqual(failsWith(0, 'rope-base', /10000/));
    expect(record.failures[0]).toBe("ropeBase is 10000 in the producer's model and 500000 in the reference's");
  });

  it('by a window that is too large', async () => {
    const window = `${ARCHITECTURE}.attention.sliding_window`;
    const record = await judgeChanged((file) => file.setNumber(window, 1024), [0, 2]);
    expect(record).toEqual(failsWith(1, 'window', /the reference's has 512 tokens/));
    const edge = Number(/up to about token (\d+)/.exec(record.cause?.detail ?? '')?.[1]);
    // From the window's end on rows differ; a token that is beyond it matters little at first.
    expect(edge).toBeGreaterThanOrEqual(512);
    expect(edge).toBeLessThan(600);
  });

  it('by a window that it admits', async () => {
    const window = `${ARCHITECTURE}.attention.sliding_window`;
    const record = await judgeChanged((file) => file.setNumber(window, 256), [0, 2], true);
    expect(record).toEqual(failsWith(1, 'window', /256/));
    expect(record.failures[0]).toMatch(/windowTokens is 256/);
  });

  it('by the weights of the first layer', async () => {
    const record = await judgeChanged(
      (file) => file.exchangeTensors('blk.0.attn_v.weight', 'blk.4.attn_v.weight'),
      [0],
    );
    expect(record).toEqual(failsWith(0, 'weights', /^other weights: V of the first layer/));
  });

  it('by the weights of a later layer', async () => {
    const record = await judgeChanged(
      (file) => file.exchangeTensors('blk.4.attn_k.weight', 'blk.5.attn_k.weight'),
      [0],
    );
    expect(record).toEqual(failsWith(4, 'weights', /the first token's rows differ/));
    expect(record.cause?.kinds).toEqual(['k']);
  });

  it('by the queries', async () => {
    const record = await judgeChanged(
      (file) => file.exchangeTensors('blk.0.attn_q.weight', 'blk.1.attn_q.weight'),
      [0],
    );
    expect(record).toEqual(failsWith(1, 'attention', /in layer 0/));
  });
});
