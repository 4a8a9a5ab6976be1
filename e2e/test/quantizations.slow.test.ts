import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { Engine, type EngineOptions, type Model, type Sequence, GREEDY, loadModel } from '@muser/metal';
import { needleDocument } from '@muser/testing';
import { afterEach, beforeAll, describe, expect, it } from 'vitest';

// K-quants need rows that are multiples of 256, which muse-nano-wide has. Q2_K and IQ2_XS lose the needles by themselves
// (so does a local prefill), so there the two ways are only compared with each other.
const TYPES = ['F16', 'Q8_0', 'Q6_K', 'Q5_K_M', 'Q4_K_M', 'Q2_K', 'IQ2_XS'];
const FINDS_NEEDLES = ['F16', 'Q8_0', 'Q6_K', 'Q5_K_M', 'Q4_K_M'];

const CHUNK_TOKENS = 512;
/** Several chunks and windows. */
const DOCUMENT_TOKENS = 2000;
/** Room for an answer and its fork. */
const ANSWER_TOKENS = 48;

const inRepository = (path: string) => fileURLToPath(new URL(`../../${path}`, import.meta.url));
const cache = inRepository('.cache/models');
const wideF16 = `${cache}/muse-nano-wide-f16.gguf`;
const tool = (name: string) => inRepository(`native/metal/build/cmake/tools/${name}`);

/** An interpreter that has what the model script needs; installed once. */
function pythonWithGguf(): string {
  const python = inRepository('.cache/gguf-venv/bin/python');
  if (!existsSync(python)) execFileSync('python3', ['-m', 'venv', inRepository('.cache/gguf-venv')]);
  execFileSync(python, ['-m', 'pip', 'install', '--quiet', 'numpy==2.*', 'gguf==0.*']);
  return python;
}

const optionsFor = (flashAttention: boolean): EngineOptions => ({
  maxSequences: 2,
  contextTokens: 6144,
  chunkTokens: CHUNK_TOKENS,
  flashAttention,
  kvType: 'f16',
  threads: 1,
});

beforeAll(() => {
  mkdirSync(cache, { recursive: true });
  execFileSync(process.execPath, [inRepository('native/metal/scripts/build.mjs'), '--tools']);
  if (!existsSync(wideF16)) {
    execFileSync(pythonWithGguf(), [inRepository('native/metal/tools/make_wide_f16.py'), wideF16]);
  }
}, 600_000);

describe.each(TYPES)('muse-nano-wide as %s', (type) => {
  let close: (() => Promise<void>)[] = [];
  afterEach(async () => {
    for (const step of close.reverse()) await step();
    close = [];
  });

  async function open(options: EngineOptions): Promise<{ model: Model; engine: Engine }> {
    const path = type === 'F16' ? wideF16 : `${cache}/muse-nano-wide-${type}.gguf`;
    if (!existsSync(path)) execFileSync(tool('muser-quantize'), [wideF16, path, type]);
    const model = await loadModel(path);
    const engine = await Engine.create(model, options);
    close.push(async () => model.close());
    close.push(() => engine.close());
    return { model, engine };
  }

  it.each([
    { flashAttention: false, tolerance: 0.01 },
    { flashAttention: true, tolerance: 1 },
  ])(
    'gives the same first token by hand-off as locally (flash attention $flashAttention)',
    async ({ flashAttention, tolerance }) => {
      const options = optionsFor(flashAttention);
      const { model, engine } = await open(options);
      const document = needleDocument({
        seed: 7,
        approximateTokens: DOCUMENT_TOKENS,
        tokenCount: (text) => model.tokenize(text, { special: false }).length,
      });
      const prompt = promptOf(model, document.text, document.question);

      const source = engine.open(prompt.length + ANSWER_TOKENS);
      const chunks = await prefillAndExport(model, source, prompt.subarray(0, -1));
      const local = await answer(model, source, prompt);
      const target = engine.open(prompt.length + ANSWER_TOKENS);
      await install(model, target, chunks);
      const remote = await answer(model, target, prompt);

      expect(largestDifference(local.logits, remote.logits)).toBeLessThan(tolerance);
      expect(argmax(remote.logits)).toBe(argmax(local.logits));
      if (!flashAttention) expect(remote.text).toBe(local.text);
      if (FINDS_NEEDLES.includes(type)) expect([local.text, remote.text]).toEqual([document.answer, document.answer]);
    },
  );
});

function promptOf(model: Model, document: string, question: string): Int32Array {
  const before =
    '<|begin_of_text|><|start|>system<|message|>You are a helpful AI assistant.<|eot|><|start|>user<|message|>';
  const after = '<|eot|><|start|>assistant to=user<|message|>';
  return Int32Array.from([
    ...model.tokenize(before, { special: true }),
    ...model.tokenize(`${document}\n\n${question}`, { special: false }),
    ...model.tokenize(after, { special: true }),
  ]);
}

/** Evaluates the last token in a fork for its logits, then decodes greedily. */
async function answer(model: Model, sequence: Sequence, prompt: Int32Array) {
  const last = prompt.subarray(-1);
  const fork = await sequence.fork(prompt.length + 1);
  await fork.evaluate(last);
  const logits = fork.lastLogits();
  await fork.dispose();
  let text = '';
  const stopTokens = [model.info.eotToken ?? -1];
  await sequence.generate({ ...GREEDY, prompt: last, maxTokens: 40, stopTokens }, (output) => {
    text += output.text;
  });
  await sequence.dispose();
  return { logits, text: text.trim() };
}

function largestDifference(a: Float32Array, b: Float32Array): number {
  return a.reduce((largest, value, i) => Math.max(largest, Math.abs(value - (b[i] ?? Number.NaN))), 0);
}

function argmax(values: Float32Array): number {
  return values.reduce((best, value, i) => (value > (values[best] ?? -Infinity) ? i : best), 0);
}

interface Chunk {
  start: number;
  end: number;
  windowStart: number;
  /** In the order of layers, K before V. */
  parts: Uint8Array[];
}

/** Prefills as a producer and as a local prefill do, and takes each chunk's rows in wire form. */
async function prefillAndExport(model: Model, source: Sequence, tokens: Int32Array): Promise<Chunk[]> {
  const { layers, kvHeads, headDimension, windowTokens } = model.info.geometry;
  const chunks: Chunk[] = [];
  for (let start = 0; start < tokens.length; start += CHUNK_TOKENS) {
    const end = Math.min(start + CHUNK_TOKENS, tokens.length);
    await source.evaluate(tokens.subarray(start, end));
    const windowStart = Math.max(start, end - windowTokens);
    const rows = await source.exportRange(start, end, { windowStart });
    const parts = layers.flatMap((kind, layer) => {
      const from = kind === 'global' ? start : windowStart;
      return (['k', 'v'] as const).map((part) => {
        const bytes = new Uint8Array((end - from) * kvHeads * headDimension * 2);
        rows.read(layer, part, from, end - from, bytes, 0);
        return bytes;
      });
    });
    rows.dispose();
    chunks.push({ start, end, windowStart, parts });
  }
  return chunks;
}

async function install(model: Model, target: Sequence, chunks: readonly Chunk[]): Promise<void> {
  for (const { start, end, windowStart, parts } of chunks) {
    const stage = target.stage(start, end, windowStart);
    for (const [index, bytes] of parts.entries()) {
      const layer = index >> 1;
      const from = model.info.geometry.layers[layer] === 'global' ? start : windowStart;
      stage.put(layer, index % 2 === 0 ? 'k' : 'v', from, end - from, 'f16', bytes);
    }
    await target.install(stage);
    stage.dispose();
  }
}
