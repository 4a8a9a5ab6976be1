import { awaitNative, callNative, EngineError, runTask } from './errors.js';
import { KvExport, KvStage, nativeStageOf } from './kv.js';
import type { NativeGenerateOptions, NativeGenerateResult, NativeOutput, NativeSequence } from './native.js';

export interface EvaluateOptions {
  signal?: AbortSignal;
  /** Tokens evaluated so far, of those given. */
  onProgress?: (done: number) => void;
}

export interface GenerateOptions {
  /** Tokens still to be evaluated, at least one: all but the last in chunks, the last one alone as a decode step. */
  prompt: Int32Array | Uint32Array;
  maxTokens: number;
  /** 0 = greedy and exact. */
  temperature: number;
  /** 0 = off. */
  topK: number;
  /** 1 = off. */
  topP: number;
  /** 0 = off. */
  minP: number;
  /** 1 = off. Penalties look at this answer's tokens only, so that local and remote prefill give the same. */
  repeatPenalty: number;
  frequencyPenalty: number;
  presencePenalty: number;
  /** How many of the answer's last tokens the penalties look at; 0 = none. */
  penaltyLastN: number;
  seed: number;
  logitBias: [token: number, bias: number][];
  stopTokens: number[];
  stopStrings: string[];
  signal?: AbortSignal;
  onPrefillProgress?: (done: number, total: number) => void;
}

/**
 * 'stop': a stop token or stop string; 'length': maxTokens; 'context': the sequence's reserved tokens are used up.
 * `generatedTokens` counts every sampled token, the stop token included. Times are since the call.
 */
export type GenerateResult = NativeGenerateResult;

/** Text is append-only and valid UTF-8; stop strings and stop tokens are never part of it. */
export type GenerateOutput = NativeOutput;

const MAX_STOP_STRINGS = 64;
const MAX_STOP_STRING_LENGTH = 4096;

/**
 * One conversation's place in the cache. Operations run in the order in which they were called.
 * `position`: rows [0, position) are present. The last sampled token of a generation has no row yet.
 */
export class Sequence {
  readonly #native: NativeSequence;
  #disposed: Promise<void> | null = null;

  /** Sequences come from `Engine.open` and `fork`. */
  constructor(native: NativeSequence) {
    this.#native = native;
  }

  get position(): number {
    return callNative('Sequence.position', () => this.#native.position());
  }

  /** Evaluates tokens in chunks that end at multiples of the engine's chunkTokens; keeps the last token's logits. */
  evaluate(tokens: Int32Array | Uint32Array, options: EvaluateOptions = {}): Promise<void> {
    const { onProgress } = options;
    return runTask('Sequence.evaluate', options.signal ?? null, (guard) =>
      this.#native.evaluate(signed(tokens), onProgress === undefined ? null : guard(onProgress)),
    );
  }

  /** Prefills the rest of the prompt and decodes. Rejects with CANCELLED when aborted; the rows so far stay. */
  async generate(options: GenerateOptions, onOutput: (output: GenerateOutput) => void): Promise<GenerateResult> {
    const compiled = compileGenerateOptions(options);
    const { onPrefillProgress } = options;
    const total = options.prompt.length;
    const onProgress =
      onPrefillProgress === undefined
        ? null
        : (done: number): void => {
            onPrefillProgress(done, total);
          };
    return await runTask('Sequence.generate', options.signal ?? null, (guard) =>
      this.#native.generate(
        signed(options.prompt),
        compiled,
        guard(onOutput),
        onProgress === null ? null : guard(onProgress),
      ),
    );
  }

  /** Logits of the last evaluated token, one a vocabulary entry. SEQUENCE_STATE when there are none. */
  lastLogits(): Float32Array {
    return callNative('Sequence.lastLogits', () => this.#native.lastLogits());
  }

  /** Global rows [start, end) and window rows [windowStart, end); windowStart = end for none. RANGE when not present. */
  async exportRange(start: number, end: number, options: { windowStart: number }): Promise<KvExport> {
    return new KvExport(
      await awaitNative('Sequence.exportRange', () => this.#native.exportRange(start, end, options.windowStart)),
    );
  }

  /** An empty stage for global rows [start, end) and window rows [windowStart, end). */
  stage(start: number, end: number, windowStart: number): KvStage {
    return new KvStage(callNative('Sequence.stage', () => this.#native.stage(start, end, windowStart)));
  }

  /** Puts a complete stage at this sequence's end and empties it. After an error nothing has changed. */
  install(stage: KvStage): Promise<void> {
    return awaitNative('Sequence.install', () => this.#native.install(nativeStageOf(stage)));
  }

  /** Forgets the rows from `position` on. SEQUENCE_STATE when the window needed to go on from there is not there, also at the end. */
  truncate(position: number): Promise<void> {
    return awaitNative('Sequence.truncate', () => this.#native.truncate(position));
  }

  /**
   * Gives the sequence another reservation, once what was called before has ended. CONTEXT_FULL, with the numbers, when the
   * cells are not there, RANGE below its position; it then has the reservation that it had.
   */
  reserve(tokens: number): Promise<void> {
    return awaitNative('Sequence.reserve', () => this.#native.reserve(tokens));
  }

  /** A copy that shares the global rows and has window rows of its own. */
  async fork(reserveTokens: number): Promise<Sequence> {
    return new Sequence(await awaitNative('Sequence.fork', () => this.#native.fork(reserveTokens)));
  }

  /** Stores the window rows side by side again, which speeds decoding up after many sequences came and went. */
  packWindow(): Promise<void> {
    return awaitNative('Sequence.packWindow', () => this.#native.packWindow());
  }

  /** Cancels what runs and frees the rows between two micro-batches. A second call does nothing. */
  dispose(): Promise<void> {
    this.#disposed ??= awaitNative('Sequence.dispose', () => this.#native.dispose());
    return this.#disposed;
  }
}

function signed(tokens: Int32Array | Uint32Array): Int32Array {
  return tokens instanceof Int32Array ? tokens : new Int32Array(tokens.buffer, tokens.byteOffset, tokens.length);
}

function compileGenerateOptions(options: GenerateOptions): NativeGenerateOptions {
  const number = (name: keyof GenerateOptions, low: number, high: number, whole: boolean): number => {
    const value = options[name];
    if (typeof value !== 'number' || !(value >= low && value <= high) || (whole && !Number.isInteger(value))) {
      const kind = whole ? 'a whole number' : 'a number';
      throw new EngineError('INVALID_ARGUMENT', `Sequence.generate: ${name} must be ${kind} from ${low} to ${high}`);
    }
    return value;
  };
  const strings = options.stopStrings;
  if (strings.length > MAX_STOP_STRINGS || strings.some((s) => s === '' || s.length > MAX_STOP_STRING_LENGTH)) {
    throw new EngineError(
      'INVALID_ARGUMENT',
      `Sequence.generate: stopStrings must be at most ${MAX_STOP_STRINGS} texts of 1 to ${MAX_STOP_STRING_LENGTH} characters`,
    );
  }
  if (options.logitBias.some(([token, bias]) => !Number.isInteger(token) || token < 0 || !(bias < Infinity))) {
    throw new EngineError(
      'INVALID_ARGUMENT',
      'Sequence.generate: logitBias must be pairs of token id and number below infinity',
    );
  }
  return {
    maxTokens: number('maxTokens', 1, 2 ** 31 - 1, true),
    temperature: number('temperature', 0, 100, false),
    topK: number('topK', 0, 2 ** 31 - 1, true),
    topP: number('topP', 0, 1, false),
    minP: number('minP', 0, 1, false),
    repeatPenalty: number('repeatPenalty', 0.01, 100, false),
    frequencyPenalty: number('frequencyPenalty', -100, 100, false),
    presencePenalty: number('presencePenalty', -100, 100, false),
    penaltyLastN: number('penaltyLastN', 0, 2 ** 20, true),
    seed: number('seed', 0, 2 ** 32 - 1, true),
    logitBias: options.logitBias,
    stopTokens: options.stopTokens,
    stopStrings: strings,
  } satisfies NativeGenerateOptions;
}
