import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { type Geometry, MuserError } from '@muser/protocol';
import { TinyModel, type TinyModelOptions } from '@muser/testing';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import type { PrefillBackend, PrefillRun, PrefillTask } from '../src/backend/backend.js';
import { LlamaBackend } from '../src/backend/llama.js';
import { checkRope } from '../src/backend/rope-check.js';
import { MUSE_NANO } from './support/model.js';
import { SharedBackend } from './support/shared-backend.js';

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'muser-rope-'));
});
afterAll(() => rm(folder, { recursive: true }));

function open(modelPath: string): Promise<LlamaBackend> {
  return LlamaBackend.open({
    modelPath,
    modelDigest: new Uint8Array(32),
    chunkTokens: 128,
    maxPromptTokens: 256,
    maxConcurrent: 1,
    threads: 1,
    flashAttention: false,
    kvType: 'f16',
    tokensPerSecond: null,
  });
}

async function tiny(options: TinyModelOptions): Promise<string> {
  const path = join(folder, `${options.architecture}.gguf`);
  await writeFile(path, new TinyModel(options).gguf());
  return path;
}

/** A backend that is right but for what it says of its model. */
class Lying extends SharedBackend {
  override readonly model: PrefillBackend['model'];

  constructor(backend: PrefillBackend, changes: Partial<Geometry>) {
    super(backend);
    const { identity, geometry } = backend.model;
    this.model = { identity, geometry: { ...geometry, ...changes } };
  }
}

/** A backend that refuses its first prefills, as vLLM refuses places for images. */
class Refusing extends SharedBackend {
  readonly asked: (number | undefined)[] = [];
  readonly #backend: PrefillBackend;
  readonly #error: MuserError;
  readonly #times: number;

  constructor(backend: PrefillBackend, error: MuserError, times: number) {
    super(backend);
    this.#backend = backend;
    this.#error = error;
    this.#times = times;
  }

  override prefill(task: PrefillTask): PrefillRun {
    this.asked.push(task.tokens[0]);
    if (this.asked.length <= this.#times) throw this.#error;
    return this.#backend.prefill(task);
  }
}

const signal = new AbortController().signal;

describe('checkRope', () => {
  it.each(['muse-nano', 'llama', 'qwen2', 'qwen3', 'gemma3'] as const)('agrees with %s', async (name) => {
    const backend = await open(name === 'muse-nano' ? MUSE_NANO : await tiny({ architecture: name }));
    try {
      await checkRope(backend, signal);
    } finally {
      await backend.close();
    }
  });

  it('names the layer that turns in another way than the model says', async () => {
    const backend = await open(MUSE_NANO);
    const layers = backend.model.geometry.layers;
    const wrong: [Partial<Geometry>, RegExp][] = [
      [{ ropeBase: 10_000 }, /K of layer 0 does not turn in half-split order by base 10000/],
      [{ ropeBase: 250_000 }, /K of layer 0/],
      [{ ropeLayers: 'all' }, /K of layer 3 does not turn/],
      [{ layers: [...layers].reverse() }, /K of layer 0 differs between positions/],
    ];
    try {
      for (const [changes, reason] of wrong) {
        await expect(checkRope(new Lying(backend, changes), signal)).rejects.toMatchObject({
          code: 'MODEL_UNSUPPORTED',
          message: expect.stringMatching(reason) as string,
        });
      }
    } finally {
      await backend.close();
    }
  });
});

describe('the token that is tried', () => {
  it('is another one when the engine refuses it, but not without end, and not for another error', async () => {
    const backend = await open(MUSE_NANO);
    const refusal = new MuserError('INVALID_REQUEST', 'image and video input cannot be prefilled here');
    const failure = new MuserError('ENGINE_FAILED', 'broken');
    try {
      const once = new Refusing(backend, refusal, 1);
      await checkRope(once, signal);
      expect(new Set(once.asked).size).toBe(2);
      await expect(checkRope(new Refusing(backend, refusal, 99), signal)).rejects.toBe(refusal);
      const broken = new Refusing(backend, failure, 1);
      await expect(checkRope(broken, signal)).rejects.toBe(failure);
      expect(broken.asked).toHaveLength(1);
    } finally {
      await backend.close();
    }
  });
});

describe('LlamaBackend', () => {
  it('does not produce for a model that decodes locally only, and says why', async () => {
    const path = await tiny({
      architecture: 'qwen2',
      metadata: { 'rope.scaling.type': 'linear', 'rope.scaling.factor': { f32: 4 } },
    });
    await expect(open(path)).rejects.toMatchObject({
      code: 'MODEL_UNSUPPORTED',
      message: expect.stringContaining('does not turn as plain RoPE') as string,
    });
  });
});
