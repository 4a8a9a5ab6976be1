import { createHash } from 'node:crypto';
import { awaitNative, callNative, EngineError, runTask } from './errors.js';
import { loadAddon, type LayerKind, type NativeLoadOptions, type NativeModel, type NativeTextPiece } from './native.js';

export interface LoadModelOptions {
  /** Layers on the GPU; all of them by default where there is a GPU. */
  gpuLayers?: number;
  /** CPU threads that look at the cache once the weights are loaded, 1 to 256; 1 by default. */
  threads?: number;
  /** 0 to 1, rising. */
  onProgress?: (fraction: number) => void;
  signal?: AbortSignal;
}

export interface ModelInfo {
  path: string;
  name: string;
  architecture: string;
  description: string;
  fileBytes: number;
  parameters: number;
  trainedContextTokens: number;
  vocabularySize: number;
  geometry: {
    /** Empty when llama.cpp keeps something else than K and V of every layer; then no rows can be exported. */
    layers: LayerKind[];
    kvHeads: number;
    headDimension: number;
    /** 0 = the model has no sliding-window layers. */
    windowTokens: number;
    ropeBase: number;
    ropeLayers: 'all' | 'window';
  };
  /** llama.cpp holds K interleaved (RoPE type NORM); the wire form is half-split. */
  kPermuted: boolean;
  /** Why rows of this model cannot be handed over between machines; null when they can. */
  localOnly: string | null;
  /** SHA-256 over every token's u32 little-endian length and bytes, in id order. */
  tokenizerSha256: Uint8Array;
  chatTemplate: string | null;
  bosToken: number | null;
  eosToken: number | null;
  eotToken: number | null;
  bosText: string;
  addBos: boolean;
  /** The file's scalar metadata, as text. */
  metadata: Record<string, string>;
}

/**
 * Reads a GGUF file's header: whether it is one, and whether every tensor of its table lies within it. Milliseconds, so
 * that a download that was cut off is noticed before gigabytes are hashed or loaded; {@link loadModel} checks it too.
 * Rejects with MODEL_LOAD_FAILED or MODEL_UNSUPPORTED.
 */
export async function checkModelFile(path: string): Promise<void> {
  const addon = loadAddon();
  await awaitNative('checkModelFile', () => addon.checkModelFile(fileName('checkModelFile', path)));
}

/**
 * Loads a GGUF file. A second load of the same file (same canonical path, size and change time) shares its weights.
 * Every architecture that llama.cpp decodes is taken; `info.localOnly` says which cannot be handed over.
 * Rejects with MODEL_LOAD_FAILED (missing, truncated, no GGUF, unknown to llama.cpp), MODEL_UNSUPPORTED (an encoder, a
 * model in several files), OUT_OF_MEMORY or CANCELLED.
 */
export async function loadModel(path: string, options: LoadModelOptions = {}): Promise<Model> {
  const gpuLayers = options.gpuLayers ?? null;
  if (gpuLayers !== null && !(Number.isInteger(gpuLayers) && gpuLayers >= 0 && gpuLayers <= 1024)) {
    throw new EngineError('INVALID_ARGUMENT', `loadModel: gpuLayers is ${gpuLayers}, not 0 to 1024`);
  }
  const threads = options.threads ?? 1;
  if (!(Number.isInteger(threads) && threads >= 1 && threads <= 256)) {
    throw new EngineError('INVALID_ARGUMENT', `loadModel: threads is ${threads}, not 1 to 256`);
  }
  const native = { path: fileName('loadModel', path), gpuLayers, threads } satisfies NativeLoadOptions;
  const addon = loadAddon();
  const { onProgress } = options;
  const model = await runTask('loadModel', options.signal ?? null, (guard) =>
    addon.loadModel(native, onProgress === undefined ? null : guard(onProgress)),
  );
  return new Model(model);
}

export interface TextPiece {
  text: string;
  /** `<|eot|>` and its like become single tokens. */
  special: boolean;
}

function fileName(call: string, path: string): string {
  if (typeof path === 'string' && path !== '' && !path.includes('\0')) return path;
  throw new EngineError('INVALID_ARGUMENT', `${call}: path must be a file name`);
}

const nativeOf = new WeakMap<Model, NativeModel>();

/** For this package only: the addon's object behind a model. */
export function nativeModelOf(model: Model): NativeModel {
  const native = nativeOf.get(model);
  if (native === undefined) throw new EngineError('INVALID_ARGUMENT', 'not a model of this package');
  return native;
}

/** Loaded weights and their tokenizer. Dropping it frees the weights too, later; `close` frees them when no engine uses them. */
export class Model {
  readonly info: ModelInfo;
  readonly #native: NativeModel;

  /** Models come from {@link loadModel}. */
  constructor(native: NativeModel) {
    this.#native = native;
    nativeOf.set(this, native);
    const { metadata, ...info } = callNative('Model.info', () => native.info());
    const vocabulary = callNative('Model.vocabularyBytes', () => native.vocabularyBytes());
    const tokenizerSha256 = new Uint8Array(createHash('sha256').update(vocabulary).digest());
    this.info = { ...info, tokenizerSha256, metadata: Object.fromEntries(metadata) };
  }

  /** Token ids of `text`; never adds a beginning-of-text token. `special`: `<|eot|>` and its like become single tokens. */
  tokenize(text: string, options: { special: boolean }): Int32Array {
    return callNative('Model.tokenize', () => this.#native.tokenize(text, options.special));
  }

  /** As {@link tokenize} for the pieces of a prompt, on a thread of its own: long texts take milliseconds by the ten. */
  tokenizePieces(pieces: readonly TextPiece[]): Promise<Int32Array[]> {
    const native = pieces.map(({ text, special }) => ({ text, special }) satisfies NativeTextPiece);
    return awaitNative('Model.tokenizePieces', () => this.#native.tokenizePieces(native));
  }

  /** The bytes that a token stands for; special tokens give their written form. */
  pieceBytes(token: number): Uint8Array {
    return callNative('Model.pieceBytes', () => this.#native.pieceBytes(token));
  }

  isEndOfGeneration(token: number): boolean {
    return callNative('Model.isEndOfGeneration', () => this.#native.isEndOfGeneration(token));
  }

  /** Engines that were made from this model keep the weights until they close. A second call does nothing. */
  close(): void {
    callNative('Model.close', () => {
      this.#native.close();
    });
  }
}
