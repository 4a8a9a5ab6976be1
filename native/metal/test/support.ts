import { fileURLToPath } from 'node:url';
import { needleDocument, type NeedleDocument } from '@muser/testing';
import {
  Engine,
  EngineError,
  GREEDY as PLAIN_GREEDY,
  loadModel,
  type EngineErrorCode,
  type EngineOptions,
  type GenerateOptions,
  type GenerateResult,
  type KvKind,
  type Model,
  type Sequence,
} from '../ts/index.js';

export const MODEL_PATH = fileURLToPath(new URL('../../../models/muse-nano/muse-nano-q8_0.gguf', import.meta.url));

let shared: Promise<Model> | null = null;

/** muse-nano, loaded once for a test file. */
export function nano(): Promise<Model> {
  shared ??= loadModel(MODEL_PATH);
  return shared;
}

export const ENGINE: EngineOptions = {
  maxSequences: 1,
  contextTokens: 4096,
  chunkTokens: 512,
  flashAttention: false,
  kvType: 'f16',
  threads: 1,
};

/** Greedy, until the end of the answer. */
export const GREEDY: Omit<GenerateOptions, 'prompt'> = { ...PLAIN_GREEDY, maxTokens: 48, stopTokens: [5] };

/** Runs `work` with an engine that is closed afterwards, whatever happens. */
export async function withEngine<T>(options: Partial<EngineOptions>, work: (engine: Engine) => Promise<T>): Promise<T> {
  const engine = await Engine.create(await nano(), { ...ENGINE, ...options });
  try {
    return await work(engine);
  } finally {
    await engine.close();
  }
}

export interface Answer {
  text: string;
  tokens: number[];
  pieces: string[];
  result: GenerateResult;
}

export async function generate(
  sequence: Sequence,
  options: Partial<GenerateOptions> & Pick<GenerateOptions, 'prompt'>,
) {
  const answer: Omit<Answer, 'result'> = { text: '', tokens: [], pieces: [] };
  const result = await sequence.generate({ ...GREEDY, ...options }, ({ text, tokens }) => {
    answer.text += text;
    answer.pieces.push(text);
    answer.tokens.push(...tokens);
  });
  return { ...answer, result } satisfies Answer;
}

/** The prompt form of models/muse-nano/README.md. */
export function chatPrompt(text: string): string {
  return (
    '<|begin_of_text|><|start|>system<|message|>You are a helpful AI assistant.<|eot|>' +
    `<|start|>user<|message|>${text}<|eot|><|start|>assistant to=user<|message|>`
  );
}

export interface NeedlePrompt extends NeedleDocument {
  tokens: Int32Array;
}

export async function needlePrompt(seed: number, approximateTokens: number): Promise<NeedlePrompt> {
  const model = await nano();
  const tokenCount = (text: string): number => model.tokenize(text, { special: false }).length;
  const document = needleDocument({ seed, approximateTokens, tokenCount });
  const prompt = chatPrompt(`${document.text}\n\n${document.question}`);
  return { ...document, tokens: model.tokenize(prompt, { special: true }) };
}

/** Exactly `count` tokens of document text. */
export async function textTokens(count: number, seed = 1): Promise<Int32Array> {
  const { tokens } = await needlePrompt(seed, count + 200);
  return tokens.slice(0, count);
}

export function windowStartOf(model: Model, start: number, end: number): number {
  return Math.max(start, end - model.info.geometry.windowTokens);
}

/** One chunk's rows in wire form, by layer and kind. */
export interface ChunkRows {
  start: number;
  end: number;
  windowStart: number;
  parts: { layer: number; kind: KvKind; tokenStart: number; tokenCount: number; bytes: Uint8Array }[];
}

export async function exportChunk(
  model: Model,
  source: Sequence,
  start: number,
  end: number,
  windowStart = windowStartOf(model, start, end),
): Promise<ChunkRows> {
  const { layers, kvHeads, headDimension } = model.info.geometry;
  const rowBytes = kvHeads * headDimension * 2;
  const view = await source.exportRange(start, end, { windowStart });
  const parts: ChunkRows['parts'] = [];
  for (const [layer, layerKind] of layers.entries()) {
    const tokenStart = layerKind === 'global' ? start : windowStart;
    const tokenCount = end - tokenStart;
    if (tokenCount === 0) continue;
    for (const kind of ['k', 'v'] as const) {
      const bytes = new Uint8Array(tokenCount * rowBytes);
      const written = view.read(layer, kind, tokenStart, tokenCount, bytes, 0);
      if (written !== bytes.length) throw new Error(`read ${written} of ${bytes.length} bytes`);
      parts.push({ layer, kind, tokenStart, tokenCount, bytes });
    }
  }
  view.dispose();
  return { start, end, windowStart, parts };
}

export async function installChunk(target: Sequence, chunk: ChunkRows): Promise<void> {
  const stage = target.stage(chunk.start, chunk.end, chunk.windowStart);
  try {
    for (const { layer, kind, tokenStart, tokenCount, bytes } of chunk.parts) {
      stage.put(layer, kind, tokenStart, tokenCount, 'f16', bytes);
    }
    await target.install(stage);
  } finally {
    stage.dispose();
  }
}

/** Evaluates tokens [0, count) chunk by chunk and takes each chunk's rows right after it, as a producer does. */
export async function prefillAndExport(
  model: Model,
  source: Sequence,
  tokens: Int32Array,
  count: number,
  chunkTokens: number,
): Promise<ChunkRows[]> {
  const chunks: ChunkRows[] = [];
  for (let start = source.position; start < count;) {
    const end = Math.min(count, (Math.floor(start / chunkTokens) + 1) * chunkTokens);
    await source.evaluate(tokens.subarray(start, end));
    chunks.push(await exportChunk(model, source, start, end));
    start = end;
  }
  return chunks;
}

export function greatestDifference(a: Float32Array, b: Float32Array): number {
  if (a.length !== b.length) throw new Error(`${a.length} and ${b.length} logits`);
  let greatest = 0;
  for (const [i, value] of a.entries()) greatest = Math.max(greatest, Math.abs(value - (b[i] ?? NaN)));
  return greatest;
}

/** The code of the EngineError that `call` must fail with. */
export async function codeOf(call: () => unknown): Promise<EngineErrorCode> {
  try {
    await call();
  } catch (error) {
    if (error instanceof EngineError) return error.code;
    throw error;
  }
  throw new Error('no error was thrown');
}
