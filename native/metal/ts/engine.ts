import { awaitNative, callNative, EngineError } from './errors.js';
import { nativeModelOf, type Model } from './model.js';
import {
  loadAddon,
  type CacheType,
  type NativeEngine,
  type NativeEngineOptions,
  type NativeEngineStats,
} from './native.js';
import { Sequence } from './sequence.js';

export interface EngineOptions {
  /** Sequences that can be open at once, 1 to 64. */
  maxSequences: number;
  /** Cells of the cache, shared by all sequences. */
  contextTokens: number;
  /** Tokens of one prefill step; steps end at its multiples. */
  chunkTokens: number;
  flashAttention: boolean;
  /** q8_0 needs flash attention. */
  kvType: CacheType;
  threads: number;
}

export type EngineStats = NativeEngineStats;

/** One llama.cpp context and the thread that runs it. Dropping it without `close` neither hangs nor crashes the process. */
export class Engine {
  readonly #native: NativeEngine;
  #closed: Promise<void> | null = null;

  private constructor(native: NativeEngine) {
    this.#native = native;
  }

  /** Allocates the whole cache at once. Rejects with OUT_OF_MEMORY, with the numbers, when it does not fit. */
  static async create(model: Model, options: EngineOptions): Promise<Engine> {
    const compiled = compileEngineOptions(options);
    const native = await awaitNative('Engine.create', () => loadAddon().createEngine(nativeModelOf(model), compiled));
    return new Engine(native);
  }

  /** Reserves cells for prompt and answer. Throws CONTEXT_FULL, with the numbers, when cells or sequences are not there. */
  open(reserveTokens: number): Sequence {
    return new Sequence(callNative('Engine.open', () => this.#native.open(reserveTokens)));
  }

  stats(): EngineStats {
    return callNative('Engine.stats', () => this.#native.stats());
  }

  /** Bytes of cache that a sequence of `tokens` tokens uses. */
  sequenceBytes(tokens: number): number {
    return callNative('Engine.sequenceBytes', () => this.#native.sequenceBytes(tokens));
  }

  /** Cancels everything, ends the thread and frees the cache. A second call does nothing more. */
  close(): Promise<void> {
    this.#closed ??= awaitNative('Engine.close', () => this.#native.close());
    return this.#closed;
  }
}

function compileEngineOptions(options: EngineOptions): NativeEngineOptions {
  const whole = (name: keyof EngineOptions, low: number, high: number): number => {
    const value = options[name];
    if (typeof value !== 'number' || !Number.isInteger(value) || value < low || value > high) {
      throw new EngineError(
        'INVALID_ARGUMENT',
        `Engine.create: ${name} is ${String(value)}, not a whole number from ${low} to ${high}`,
      );
    }
    return value;
  };
  const { flashAttention, kvType } = options;
  if (kvType !== 'f16' && kvType !== 'q8_0') {
    throw new EngineError('INVALID_ARGUMENT', `Engine.create: kvType is ${String(kvType)}, not f16 or q8_0`);
  }
  if (kvType === 'q8_0' && !flashAttention) {
    throw new EngineError('INVALID_ARGUMENT', 'Engine.create: kvType q8_0 needs flashAttention');
  }
  return {
    maxSequences: whole('maxSequences', 1, 64),
    contextTokens: whole('contextTokens', 2, 2 ** 28),
    chunkTokens: whole('chunkTokens', 1, 16_384),
    flashAttention,
    kvType,
    threads: whole('threads', 1, 256),
  } satisfies NativeEngineOptions;
}
