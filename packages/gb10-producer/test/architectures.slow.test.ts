// Models of several architectures in real vLLM on the CPU and in llama.cpp: the same random weights in both formats.
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { loadModel } from '@muser/metal';
import { createLogger } from '@muser/service-kit';
import { TinyModel, type TinyArchitecture } from '@muser/testing';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import type { PrefillBackend } from '../src/backend/backend.js';
import { openBackend } from '../src/backend/open-backend.js';
import { producerConfigSchema, VLLM_PYTHON } from '../src/config.js';
import { Decoder } from '../src/qualify/decoder.js';
import { prefillRows, type PromptRows } from '../src/rows/prompt-rows.js';
import { promptTokens } from './support/rows.js';

const START_LIMIT_MS = 300_000;
const ROPE_BASE = 50_000;
/** Several chunks, several windows, no multiple of anything. */
const PROMPT_TOKENS = 333;
/** bf16 through four layers; rows of another order or base are at 0.5 and more. */
const ROWS_TOLERANCE = 0.05;

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'muser-architectures-'));
});
afterAll(() => rm(folder, { recursive: true }));

async function open(backend: 'vllm' | 'llama', model: string): Promise<PrefillBackend> {
  const config = producerConfigSchema.parse({
    stateDir: folder,
    backend,
    model,
    chunkTokens: 128,
    maxPromptTokens: 1024,
    maxConcurrent: 1,
    threads: 1,
    flashAttention: false,
    vllm: { python: process.env['MUSER_TEST_PYTHON'] ?? VLLM_PYTHON, hangLimitMs: 120_000 },
  });
  return openBackend({
    config,
    logger: createLogger('producer', process.env['MUSER_TEST_LOG'] === '1' ? 'debug' : 'silent'),
    signal: new AbortController().signal,
    onMilestone: () => undefined,
  });
}

async function writeBoth(architecture: TinyArchitecture, name: string, ropeBase = ROPE_BASE) {
  const model = new TinyModel({ architecture, ropeBase, seed: 11 });
  const gguf = join(folder, `${name}.gguf`);
  await writeFile(gguf, model.gguf());
  await model.writeHuggingFace(join(folder, name));
  return { gguf, huggingFace: join(folder, name) };
}

async function withBackend<T>(backend: PrefillBackend, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } finally {
    await backend.close();
  }
}

function rowsOf(backend: PrefillBackend, tokens: Uint32Array): Promise<PromptRows> {
  const options = { cacheScope: 'test', signal: new AbortController().signal };
  return prefillRows(backend, tokens, options).then(({ rows }) => rows);
}

/** The worst layer's distance, relative, as the root of the mean square. */
function worstDistance(a: PromptRows, b: PromptRows, kind: 'k' | 'v'): number {
  const distances = a.geometry.layers.map((_, layer) => {
    return distance(a.values(layer, kind, a.spanOf(layer)), b.values(layer, kind, b.spanOf(layer)));
  });
  return Math.max(...distances);
}

function distance(a: Float32Array, b: Float32Array): number {
  let apart = 0;
  let length = 0;
  for (const [at, value] of a.entries()) {
    apart += (value - (b[at] ?? NaN)) ** 2;
    length += value ** 2;
  }
  return Math.sqrt(apart / length);
}

async function logitsFrom(gguf: string, tokens: Uint32Array, rows: PromptRows): Promise<Float32Array> {
  const model = await loadModel(gguf);
  const options = { promptTokens: PROMPT_TOKENS, chunkTokens: 128, threads: 1, flashAttention: false };
  const decoder = await Decoder.create(model, options);
  try {
    return (await decoder.decode(tokens, rows, new AbortController().signal)).logits;
  } finally {
    await decoder.close();
    model.close();
  }
}

const ARCHITECTURES: TinyArchitecture[] = ['llama', 'qwen2', 'qwen3', 'gemma3'];

describe.each(ARCHITECTURES)('%s', (architecture) => {
  it(
    'has the same K, V and first logits whether vLLM or llama.cpp prefills',
    async () => {
      const { gguf, huggingFace } = await writeBoth(architecture, architecture);
      const llama = await open('llama', gguf);
      const vllm = await open('vllm', huggingFace);
      const tokens = promptTokens(PROMPT_TOKENS, llama.model.geometry.vocabularySize, 7);
      const [local, remote] = await withBackend(vllm, () =>
        withBackend(llama, async () => {
          expect(vllm.model.geometry).toEqual(llama.model.geometry);
          expect(vllm.model.identity.fingerprint).toEqual(llama.model.identity.fingerprint);
          return [await rowsOf(llama, tokens), await rowsOf(vllm, tokens)] as const;
        }),
      );
      const [k, v] = [worstDistance(local, remote, 'k'), worstDistance(local, remote, 'v')];
      const logits = distance(await logitsFrom(gguf, tokens, local), await logitsFrom(gguf, tokens, remote));
      if (process.env['MUSER_TEST_LOG'] === '1')
        process.stderr.write(`${architecture}: K ${k}, V ${v}, logits ${logits}\n`);
      expect(k).toBeLessThan(ROWS_TOLERANCE);
      expect(v).toBeLessThan(ROWS_TOLERANCE);
      expect(logits).toBeLessThan(ROWS_TOLERANCE);
    },
    START_LIMIT_MS,
  );
});

describe('rows that do not belong together', () => {
  it('of another RoPE base have another fingerprint and are far apart', async () => {
    const [one, other] = [await writeBoth('llama', 'one'), await writeBoth('llama', 'other', 10_000)];
    const [first, second] = [await open('llama', one.gguf), await open('llama', other.gguf)];
    await withBackend(first, () =>
      withBackend(second, async () => {
        expect(first.model.identity.fingerprint).not.toEqual(second.model.identity.fingerprint);
        const tokens = promptTokens(PROMPT_TOKENS, 260, 7);
        expect(worstDistance(await rowsOf(first, tokens), await rowsOf(second, tokens), 'k')).toBeGreaterThan(0.5);
      }),
    );
  });

  it(
    'of a model whose RoPE is scaled are produced by neither engine',
    async () => {
      const model = new TinyModel({
        architecture: 'llama',
        metadata: {
          'rope.scaling.type': 'yarn',
          'rope.scaling.factor': { f32: 4 },
          'rope.scaling.original_context_length': 2048,
        },
        config: { rope_scaling: { rope_type: 'yarn', factor: 4, original_max_position_embeddings: 2048 } },
      });
      const gguf = join(folder, 'scaled.gguf');
      await writeFile(gguf, model.gguf());
      await model.writeHuggingFace(join(folder, 'scaled'));
      await expect(open('llama', gguf)).rejects.toMatchObject({ code: 'MODEL_UNSUPPORTED' });
      await expect(open('vllm', join(folder, 'scaled'))).rejects.toThrow(/RoPE is scaled \(yarn\)/);
    },
    START_LIMIT_MS,
  );
});
