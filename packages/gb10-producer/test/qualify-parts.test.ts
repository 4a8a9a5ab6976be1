import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import type { Geometry } from '@muser/protocol';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';

import { withinLimit } from '../src/deadline.js';
import { figuresOf, worseOf } from '../src/qualify/figures.js';
import { PromptRows } from '../src/rows/prompt-rows.js';
import { frequencies, likelyBase, rotated } from '../src/rows/rotation.js';
import { checkpointWeights, ggufWeights } from '../src/qualify/weights.js';

const failure = (code: string): Error => expect.objectContaining({ code }) as Error;

describe('the weight type', () => {
  let folder: string;
  beforeEach(async () => (folder = await mkdtemp(join(tmpdir(), 'muser-weights-'))));
  afterEach(() => rm(folder, { recursive: true }));

  it.each([
    [{ dtype: 'bfloat16' }, 'bf16'],
    [{ torch_dtype: 'float16' }, 'f16'],
    [
      {
        dtype: 'bfloat16',
        quantization_config: { quant_method: 'compressed-tensors', format: 'nvfp4-pack-quantized' },
      },
      'nvfp4',
    ],
    [{ quantization_config: { quant_method: 'modelopt', quant_algo: 'NVFP4' } }, 'nvfp4'],
    [{ quantization_config: { quant_method: 'fp8' } }, 'fp8'],
    [{}, 'unknown'],
  ])('of a checkpoint with %j is %s', async (config, weights) => {
    await writeFile(join(folder, 'config.json'), JSON.stringify(config));
    expect(await checkpointWeights(folder)).toBe(weights);
  });

  it('is not known without a configuration', async () => {
    await expect(checkpointWeights(folder)).rejects.toThrow(failure('MODEL_LOAD_FAILED'));
    await writeFile(join(folder, 'config.json'), '[1]');
    await expect(checkpointWeights(folder)).rejects.toThrow(failure('MODEL_LOAD_FAILED'));
  });

  it('of a GGUF file is what it says', () => {
    expect(ggufWeights({ metadata: { 'general.file_type': '15' } })).toBe('q4_k_m');
    expect(ggufWeights({ metadata: { 'general.file_type': '999' } })).toBe('gguf type 999');
    expect(ggufWeights({ metadata: {} })).toBe('gguf type unknown');
  });
});

describe('figures', () => {
  it('of equal, opposite and empty values', () => {
    const a = Float32Array.of(3, -4);
    expect(figuresOf(a, a)).toEqual({ cosine: 1, distance: 0, maxDifference: 0, peak: 0 });
    const opposite = figuresOf(
      a.map((value) => -value),
      a,
    );
    expect(opposite).toMatchObject({ cosine: -1, distance: 2, maxDifference: 8 });
    expect(opposite.peak).toBeCloseTo(8 / Math.sqrt(12.5), 6);
    const zero = new Float32Array(2);
    expect(figuresOf(zero, zero)).toEqual({ cosine: 1, distance: 0, maxDifference: 0, peak: 0 });
    expect(figuresOf(a, zero).cosine).toBe(0);
    expect(() => figuresOf(a, new Float32Array(3))).toThrow(RangeError);
  });

  it('are worse in every respect', () => {
    const a = { cosine: 0.9, distance: 0.1, maxDifference: 5, peak: 1 };
    const b = { cosine: 0.8, distance: 0.05, maxDifference: 6, peak: 0.5 };
    expect(worseOf(a, b)).toEqual({ cosine: 0.8, distance: 0.1, maxDifference: 6, peak: 1 });
  });
});

describe('rows of a prompt', () => {
  const geometry: Geometry = {
    layers: ['window', 'global'],
    kvHeads: 1,
    headDimension: 2,
    windowTokens: 2,
    ropeBase: 10_000,
    ropeLayers: 'all',
    vocabularySize: 100,
  };
  const bytes = (rows: number, value = 0x3c00): Uint8Array =>
    new Uint8Array(Uint16Array.from({ length: 2 * rows }, () => value).buffer);
  const whole = (value?: number): PromptRows => {
    const rows = new PromptRows(geometry, 'f16', 5);
    for (const kind of ['k', 'v'] as const) {
      rows.put(0, kind, 2, bytes(3));
      rows.put(1, kind, 0, bytes(5, value));
    }
    return rows;
  };

  it('are those that a hand-off carries', () => {
    const rows = whole();
    rows.requireComplete();
    expect([rows.spanOf(0), rows.spanOf(1)]).toEqual([
      { start: 3, end: 5 },
      { start: 0, end: 5 },
    ]);
    expect(rows.values(0, 'k', { start: 4, end: 5 })).toEqual(Float32Array.of(1, 1));
  });

  it('must all be there, once', () => {
    const rows = new PromptRows(geometry, 'f16', 5);
    expect(() => rows.requireComplete()).toThrow(failure('RANGE_VIOLATION'));
    expect(() => whole().put(1, 'k', 4, bytes(1))).toThrow(failure('RANGE_VIOLATION'));
    // One twice and one missing are as many as there should be.
    rows.put(1, 'k', 0, bytes(2));
    expect(() => rows.put(1, 'k', 1, bytes(3))).toThrow(failure('RANGE_VIOLATION'));
    rows.put(1, 'k', 2, bytes(2));
    expect(() => rows.requireComplete()).toThrow(failure('RANGE_VIOLATION'));
  });

  it.each([0x7c00, 0xfc00, 0x7e00])('must be finite: not %i', (value) => {
    expect(() => whole(value).values(1, 'v', { start: 0, end: 5 })).toThrow(failure('ENGINE_FAILED'));
  });

  it('are read in either form', () => {
    const rows = new PromptRows(geometry, 'bf16', 5);
    rows.put(1, 'k', 0, bytes(5, 0xc040));
    expect(rows.values(1, 'k', { start: 0, end: 1 })).toEqual(Float32Array.of(-3, -3));
  });
});

describe('rotation', () => {
  it('is found again by its base, from any position on', () => {
    const form = { heads: 2, headDimension: 16 };
    const plain = Float32Array.from({ length: 300 * 32 }, (_, index) => Math.sin(index * index));
    const turn = (base: number, first: number): Float32Array => {
      const turns = frequencies(base, form.headDimension);
      return rotated(plain, form, first, (position, pair) => position * (turns[pair] ?? 0));
    };
    for (const [base, first] of [
      [10_000, 0],
      [1_000_000, 0],
      [8_000_000, 700],
    ] as const) {
      expect(
        Math.abs(likelyBase(turn(base, first), turn(500_000, first), form, first, 500_000) / base - 1),
      ).toBeLessThan(0.02);
    }
  });
});

describe('a limit in time', () => {
  const forever = (signal: AbortSignal): Promise<never> =>
    new Promise((_, reject) => signal.addEventListener('abort', () => reject(new Error('stopped'))));

  it('ends work with the reason', async () => {
    const { signal } = new AbortController();
    await expect(withinLimit({ signal, limitMs: 5, what: 'this' }, forever)).rejects.toThrow(
      failure('DEADLINE_EXCEEDED'),
    );
  });

  it('ends work when the caller does, and passes other errors on', async () => {
    const stop = new AbortController();
    const work = withinLimit({ signal: stop.signal, limitMs: 60_000, what: 'this' }, forever);
    const reason = new Error('enough');
    stop.abort(reason);
    await expect(work).rejects.toBe(reason);
    const { signal } = new AbortController();
    const failing = withinLimit({ signal, limitMs: 60_000, what: 'this' }, () => Promise.reject(new Error('broken')));
    await expect(failing).rejects.toThrow('broken');
  });
});
