import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Random, TinyModel, type TinyArchitecture, type TinyModelOptions } from '@muser/testing';
import { Engine, loadModel, type Model } from '../ts/index.js';
import { compressedAttention, expertsOfLlama, mamba, partialRope } from './odd-models.js';
import { codeOf, ENGINE, generate, greatestDifference, installChunk, prefillAndExport } from './support.js';

const PROMPT_TOKENS = 300;
const WINDOW = 64;
const CHUNK = 128;

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'muser-architectures-'));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

let files = 0;
async function load(bytes: Uint8Array): Promise<Model> {
  files += 1;
  const path = join(folder, `${files}.gguf`);
  await writeFile(path, bytes);
  return await loadModel(path);
}

const tiny = (options: TinyModelOptions): Promise<Model> => load(new TinyModel(options).gguf());

async function withEngineOf<T>(model: Model, work: (engine: Engine) => Promise<T>): Promise<T> {
  const engine = await Engine.create(model, { ...ENGINE, contextTokens: 1024, chunkTokens: CHUNK });
  try {
    return await work(engine);
  } finally {
    await engine.close();
  }
}

function prompt(seed: number): Int32Array {
  const random = new Random(seed);
  return Int32Array.from({ length: PROMPT_TOKENS }, () => random.integer(0, 255));
}

const window = (layers: number) =>
  Array.from({ length: layers }, (_, layer) => (layer % 2 === 0 ? 'window' : 'global'));
const KNOWN: { architecture: TinyArchitecture; kPermuted: boolean; headDimension: number; layers: string[] }[] = [
  { architecture: 'llama', kPermuted: true, headDimension: 32, layers: Array<string>(4).fill('global') },
  { architecture: 'qwen2', kPermuted: false, headDimension: 32, layers: Array<string>(4).fill('global') },
  { architecture: 'qwen3', kPermuted: false, headDimension: 64, layers: Array<string>(4).fill('global') },
  { architecture: 'gemma3', kPermuted: false, headDimension: 64, layers: window(4) },
];

describe.each(KNOWN)('$architecture', ({ architecture, ...expected }) => {
  it('tells its geometry and the form of its RoPE', async () => {
    const { info } = await tiny({ architecture, ropeBase: 77_000, kvHeads: 2, windowTokens: WINDOW });
    expect(info).toMatchObject({
      architecture,
      kPermuted: expected.kPermuted,
      localOnly: null,
      vocabularySize: 260,
      geometry: {
        layers: expected.layers,
        kvHeads: 2,
        headDimension: expected.headDimension,
        windowTokens: expected.layers.includes('window') ? WINDOW : 0,
        ropeBase: 77_000,
        ropeLayers: 'all',
      },
    });
  });

  it('is handed from one engine to another as if it had stayed', async () => {
    const model = await tiny({ architecture, windowTokens: WINDOW, seed: 5 });
    const tokens = prompt(9);
    const last = tokens.subarray(-1);
    const { chunks, local } = await withEngineOf(model, async (engine) => {
      const source = engine.open(PROMPT_TOKENS + 1);
      const sent = await prefillAndExport(model, source, tokens, PROMPT_TOKENS - 1, CHUNK);
      await generate(source, { prompt: last, maxTokens: 1, stopTokens: [] });
      return { chunks: sent, local: source.lastLogits() };
    });
    await withEngineOf(model, async (engine) => {
      const target = engine.open(PROMPT_TOKENS + 1);
      for (const chunk of chunks) await installChunk(target, chunk);
      await generate(target, { prompt: last, maxTokens: 1, stopTokens: [] });
      expect(greatestDifference(local, target.lastLogits())).toBeLessThan(0.001);
      await target.dispose();
      // The rows matter: without them the same token has other logits by far.
      const alone = engine.open(8);
      await generate(alone, { prompt: last, maxTokens: 1, stopTokens: [] });
      expect(greatestDifference(local, alone.lastLogits())).toBeGreaterThan(0.1);
    });
    model.close();
  });

  it('has K in half-split order on the wire, turned by its own base', async () => {
    const ropeBase = 50_000;
    const model = await tiny({ architecture, windowTokens: WINDOW, ropeBase });
    const { headDimension, kvHeads } = model.info.geometry;
    const tokens = Int32Array.from({ length: 9 }, () => 65);
    // A prompt of one token over and over: whatever the layer, rows differ by their position alone.
    const chunks = await withEngineOf(model, (engine) => prefillAndExport(model, engine.open(9), tokens, 9, CHUNK));
    const parts = chunks.flatMap((chunk) => chunk.parts).filter(({ kind }) => kind === 'k');
    expect(parts).toHaveLength(4);
    for (const { bytes } of parts) {
      const rows = halves(bytes);
      const width = kvHeads * headDimension;
      for (const position of [1, 8]) {
        const turned = rotated(rows.subarray(0, width), headDimension, position, ropeBase);
        const found = rows.subarray(position * width, (position + 1) * width);
        expect(distance(found, turned)).toBeLessThan(0.01);
      }
      expect(distance(rows.subarray(8 * width), rows.subarray(0, width))).toBeGreaterThan(0.1);
    }
    model.close();
  });
});

function halves(bytes: Uint8Array): Float32Array {
  const words = new Uint16Array(bytes.slice().buffer);
  return Float32Array.from(words, (word) => {
    const exponent = (word >> 10) & 0x1f;
    const fraction = (word & 0x3ff) / 1024;
    const size = exponent === 0 ? fraction * 2 ** -14 : (1 + fraction) * 2 ** (exponent - 15);
    return word & 0x8000 ? -size : size;
  });
}

/** RoPE on half-split heads, as Hugging Face's rotate_half does it. */
function rotated(row: Float32Array, headDimension: number, position: number, base: number): Float32Array {
  const result = Float32Array.from(row);
  const half = headDimension / 2;
  for (let head = 0; head < row.length; head += headDimension) {
    for (let pair = 0; pair < half; pair += 1) {
      const angle = position * base ** ((-2 * pair) / headDimension);
      const [x, y] = [row[head + pair] ?? NaN, row[head + pair + half] ?? NaN];
      result[head + pair] = x * Math.cos(angle) - y * Math.sin(angle);
      result[head + pair + half] = x * Math.sin(angle) + y * Math.cos(angle);
    }
  }
  return result;
}

function distance(a: ArrayLike<number>, b: ArrayLike<number>): number {
  let apart = 0;
  let length = 0;
  for (let i = 0; i < a.length; i += 1) {
    apart += ((a[i] ?? NaN) - (b[i] ?? NaN)) ** 2;
    length += (b[i] ?? NaN) ** 2;
  }
  return Math.sqrt(apart / length);
}

describe('what cannot be handed over decodes locally and says why', () => {
  const factors = { shape: [16], values: Float32Array.from({ length: 16 }, (_, i) => (i < 8 ? 1 : 8)) };
  const cases: [string, TinyModelOptions, RegExp][] = [
    [
      'linear scaling',
      { architecture: 'qwen2', metadata: { 'rope.scaling.type': 'linear', 'rope.scaling.factor': { f32: 4 } } },
      /layer 0 does not turn as plain RoPE of base 10000/,
    ],
    [
      'YaRN, which leaves fast pairs alone',
      {
        architecture: 'qwen3',
        ropeBase: 1_000_000,
        metadata: {
          'rope.scaling.type': 'yarn',
          'rope.scaling.factor': { f32: 4 },
          'rope.scaling.original_context_length': 32_768,
        },
      },
      /does not turn as plain RoPE of base 1e\+06/,
    ],
    [
      "Llama 3.1's factors for slow pairs",
      { architecture: 'llama', ropeBase: 500_000, tensors: new Map([['rope_freqs.weight', factors]]) },
      /does not turn as plain RoPE of base 500000/,
    ],
    [
      'two RoPE bases',
      { architecture: 'gemma3', ropeBase: 1_000_000, metadata: { 'rope.freq_base_swa': { f32: 10_000 } } },
      /different RoPE bases \(1e\+06 and 10000\)/,
    ],
  ];
  it.each(cases)('%s', async (_, options, reason) => {
    const model = await tiny(options);
    expect(model.info.localOnly).toMatch(reason);
    expect(model.info.geometry.layers).toHaveLength(4);
    await decodes(model);
  });

  it('RoPE on a part of each head', async () => {
    const model = await load(partialRope());
    expect(model.info.localOnly).toMatch(/partial/);
    await decodes(model);
  });

  it('a mixture of experts can be handed over: only attention counts', async () => {
    const model = await load(expertsOfLlama());
    expect(model.info.localOnly).toBeNull();
    await decodes(model);
  });

  it('a recurrent model has no rows', async () => {
    const model = await load(mamba());
    expect(model.info.localOnly).toMatch(/recurrent state/);
    await withoutRows(model);
  });

  it('nor has compressed attention (MLA)', async () => {
    const model = await load(compressedAttention());
    expect(model.info.localOnly).toMatch(/K and V differ|keeps K and V of/);
    await withoutRows(model);
  });
});

async function decodes(model: Model): Promise<void> {
  await withEngineOf(model, async (engine) => {
    const answer = await generate(engine.open(64), { prompt: prompt(3).subarray(0, 20), maxTokens: 5, stopTokens: [] });
    expect(answer.result.generatedTokens).toBe(5);
  });
}

/** Decodes alike after the sequence was emptied, and refuses everything that needs rows. */
async function withoutRows(model: Model): Promise<void> {
  expect(model.info.geometry).toMatchObject({ layers: [], windowTokens: 0 });
  await withEngineOf(model, async (engine) => {
    const sequence = engine.open(64);
    const request = { prompt: prompt(3).subarray(0, 20), maxTokens: 5, stopTokens: [] };
    const first = await generate(sequence, request);
    for (const call of [
      () => sequence.exportRange(0, 8, { windowStart: 0 }),
      () => Promise.resolve(sequence.stage(25, 30, 25)),
      () => sequence.truncate(7),
      () => sequence.fork(64),
    ]) {
      expect(await codeOf(call)).toBe('MODEL_UNSUPPORTED');
    }
    await sequence.packWindow();
    await sequence.truncate(0);
    expect((await generate(sequence, request)).tokens).toEqual(first.tokens);
  });
  model.close();
}
