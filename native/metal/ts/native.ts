/**
 * The addon's own interface, written by hand and kept equal to src/bridge/*.cpp (see BRIDGE.md).
 * Objects that cross are total: absent values are `null`, never `undefined`; names and order are the same on both sides.
 */
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { existsSync } from 'node:fs';
import { EngineError } from './errors.js';

export type LayerKind = 'global' | 'window';
export type KvKind = 'k' | 'v';
export type WireType = 'f16' | 'bf16';
export type CacheType = 'f16' | 'q8_0';

export interface NativeBackend {
  name: string;
  description: string;
  kind: 'cpu' | 'gpu' | 'accelerator';
  memoryBytes: number;
  freeBytes: number;
}

export interface NativeDescription {
  platform: string;
  llamaVersion: string;
  llamaCommit: string;
  backends: NativeBackend[];
  availableMemoryBytes: number;
  device: NativeDevice | null;
}

/** What only macOS tells: the Metal device and how the machine feels. */
export interface NativeDevice {
  name: string;
  recommendedWorkingSetBytes: number;
  thermalState: 'nominal' | 'fair' | 'serious' | 'critical' | 'unknown';
  memoryPressure: 'normal' | 'warning' | 'critical' | 'unknown';
}

export interface NativeTask<T> {
  readonly promise: Promise<T>;
  cancel(): void;
}

export interface NativeLoadOptions {
  path: string;
  /** Layers to put on the GPU; null = all of them where there is one. */
  gpuLayers: number | null;
  threads: number;
}

export interface NativeGeometry {
  layers: LayerKind[];
  kvHeads: number;
  headDimension: number;
  windowTokens: number;
  ropeBase: number;
  ropeLayers: 'all' | 'window';
}

export interface NativeModelInfo {
  path: string;
  name: string;
  architecture: string;
  description: string;
  fileBytes: number;
  parameters: number;
  trainedContextTokens: number;
  vocabularySize: number;
  geometry: NativeGeometry;
  kPermuted: boolean;
  localOnly: string | null;
  chatTemplate: string | null;
  bosToken: number | null;
  eosToken: number | null;
  eotToken: number | null;
  bosText: string;
  addBos: boolean;
  metadata: [key: string, value: string][];
}

export interface NativeTextPiece {
  text: string;
  special: boolean;
}

export interface NativeModel {
  info(): NativeModelInfo;
  /** Every token's u32 little-endian length and bytes, in id order. */
  vocabularyBytes(): Uint8Array;
  tokenize(text: string, special: boolean): Int32Array;
  tokenizePieces(pieces: NativeTextPiece[]): Promise<Int32Array[]>;
  pieceBytes(token: number): Uint8Array;
  isEndOfGeneration(token: number): boolean;
  close(): void;
}

export interface NativeEngineOptions {
  maxSequences: number;
  contextTokens: number;
  chunkTokens: number;
  flashAttention: boolean;
  kvType: CacheType;
  threads: number;
}

export interface NativeEngineStats {
  sequences: number;
  reservedTokens: number;
  contextTokens: number;
  kvBytes: number;
  decodedTokens: number;
  prefilledTokens: number;
  queueDepth: number;
}

export interface NativeEngine {
  open(reserveTokens: number): NativeSequence;
  stats(): NativeEngineStats;
  sequenceBytes(tokens: number): number;
  close(): Promise<void>;
}

export interface NativeGenerateOptions {
  maxTokens: number;
  temperature: number;
  topK: number;
  topP: number;
  minP: number;
  repeatPenalty: number;
  frequencyPenalty: number;
  presencePenalty: number;
  penaltyLastN: number;
  seed: number;
  logitBias: [token: number, bias: number][];
  stopTokens: number[];
  stopStrings: string[];
}

export interface NativeOutput {
  text: string;
  tokens: number[];
}

export interface NativeGenerateResult {
  reason: 'stop' | 'length' | 'context';
  promptTokens: number;
  generatedTokens: number;
  timings: { lastPromptTokenMs: number; firstTokenMs: number; doneMs: number };
}

export interface NativeSequence {
  position(): number;
  evaluate(tokens: Int32Array, onProgress: ((done: number) => void) | null): NativeTask<void>;
  generate(
    prompt: Int32Array,
    options: NativeGenerateOptions,
    onOutput: (output: NativeOutput) => void,
    onProgress: ((done: number) => void) | null,
  ): NativeTask<NativeGenerateResult>;
  lastLogits(): Float32Array;
  exportRange(start: number, end: number, windowStart: number): Promise<NativeKvExport>;
  stage(start: number, end: number, windowStart: number): NativeKvStage;
  install(stage: NativeKvStage): Promise<void>;
  truncate(position: number): Promise<void>;
  reserve(tokens: number): Promise<void>;
  fork(reserveTokens: number): Promise<NativeSequence>;
  packWindow(): Promise<void>;
  dispose(): Promise<void>;
}

export interface NativeKvExport {
  sizeBytes(): number;
  read(
    layer: number,
    kind: KvKind,
    tokenStart: number,
    tokenCount: number,
    target: Uint8Array,
    targetOffset: number,
  ): number;
  dispose(): void;
}

export interface NativeKvStage {
  sizeBytes(): number;
  put(layer: number, kind: KvKind, tokenStart: number, tokenCount: number, wireType: WireType, bytes: Uint8Array): void;
  complete(): boolean;
  dispose(): void;
}

export interface NativeAddon {
  /** Loads the backend libraries from `libraryFolder` and takes over llama.cpp's log. Later calls do nothing. */
  initialize(libraryFolder: string): void;
  describe(): NativeDescription;
  /** Warnings and errors of llama.cpp, or null to drop them. Never keeps the process alive. */
  setLogSink(sink: ((level: 'warn' | 'error', text: string) => void) | null): void;
  checkModelFile(path: string): Promise<void>;
  loadModel(options: NativeLoadOptions, onProgress: ((fraction: number) => void) | null): NativeTask<NativeModel>;
  createEngine(model: NativeModel, options: NativeEngineOptions): Promise<NativeEngine>;
}

const PLATFORM_PACKAGES: Readonly<Record<string, string>> = {
  'linux-x64': 'linux-x64',
  'linux-arm64': 'linux-arm64',
  'darwin-arm64': 'mac-arm64-metal',
};

/** The folder of node-llama-cpp's prebuilt libraries for this platform. */
export function libraryFolder(): string {
  const platform = `${process.platform}-${process.arch}`;
  const name = PLATFORM_PACKAGES[platform];
  if (name === undefined) {
    throw new EngineError('ADDON_UNAVAILABLE', `no prebuilt llama.cpp libraries for ${platform}`);
  }
  const here = createRequire(import.meta.url);
  try {
    // The platform package is node-llama-cpp's dependency, not ours: resolve it from there.
    const owner = createRequire(here.resolve('node-llama-cpp'));
    return join(dirname(owner.resolve(`@node-llama-cpp/${name}`)), '..', 'bins', name);
  } catch (error) {
    throw new EngineError('ADDON_UNAVAILABLE', `@node-llama-cpp/${name} is not installed: run npm run bootstrap`, {
      cause: error,
    });
  }
}

/** Where the build script puts the addon. */
export function addonPath(): string {
  return process.env['MUSER_ENGINE_ADDON'] ?? fileURLToPath(new URL('../build/muser_engine.node', import.meta.url));
}

let loaded: NativeAddon | null = null;

/** Loads the addon once. Call {@link probeAddon} first where a crash of the library must not end the process. */
export function loadAddon(): NativeAddon {
  if (loaded !== null) return loaded;
  const path = addonPath();
  if (!existsSync(path)) {
    throw new EngineError('ADDON_UNAVAILABLE', `the engine addon is not built: run npm run bootstrap (${path})`);
  }
  const folder = libraryFolder();
  try {
    const addon = createRequire(import.meta.url)(path) as NativeAddon;
    addon.initialize(folder);
    loaded = addon;
    return addon;
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    throw new EngineError('ADDON_UNAVAILABLE', `the engine addon could not be loaded: ${reason}`, { cause: error });
  }
}

/** Receives llama.cpp's warnings and errors; by default they go nowhere. Give null to stop. */
export function setEngineLog(sink: ((level: 'warn' | 'error', text: string) => void) | null): void {
  loadAddon().setLogSink(sink);
}

/** llama.cpp's version and commit. */
export function engineVersion(): string {
  const { llamaVersion, llamaCommit } = loadAddon().describe();
  return `${llamaVersion} (${llamaCommit})`;
}
