import { Engine, loadModel, type EngineOptions, type Model, type Sequence } from '@muser/metal';
import {
  fingerprintOf,
  fromEngineError,
  type Geometry,
  type ModelIdentity,
  modelNameOf,
  MuserError,
} from '@muser/protocol';
import { engineCall, engineCallSync } from '../errors/engine-errors.js';
import { TokenizerQueue } from '../chat/tokenizer-queue.js';
import { WaitingLine } from './waiting-line.js';

const FINGERPRINT_BYTES = 32;

export interface DecoderEngineOptions extends EngineOptions {
  /** Path of the GGUF file. */
  readonly model: string;
  /** SHA-256 of that file. */
  readonly modelDigest: Uint8Array;
  readonly queueLimit: number;
  readonly queueDeadlineMs: number;
}

/**
 * The engine as the decoder uses it: one model, a line of requests that wait for room, and sequences that make room for
 * the next one when they are released. Everything it throws is a MuserError.
 */
export class DecoderEngine {
  readonly identity: ModelIdentity;
  readonly geometry: Geometry;
  /** Tokens at which an answer ends. */
  readonly endTokens: readonly number[];
  readonly tokenizer: TokenizerQueue;
  private readonly line: WaitingLine<SequenceLease>;

  private constructor(
    readonly model: Model,
    private readonly engine: Engine,
    private readonly options: DecoderEngineOptions,
  ) {
    const { info } = model;
    this.geometry = { ...info.geometry, vocabularySize: info.vocabularySize };
    this.identity = {
      // No producer has the other one, so a model whose rows cannot be handed over is always prefilled here.
      fingerprint:
        info.localOnly === null
          ? fingerprintOf({ geometry: this.geometry, tokenizerSha256: info.tokenizerSha256 })
          : new Uint8Array(FINGERPRINT_BYTES),
      modelDigest: options.modelDigest,
      name: modelNameOf(options.model, info.name),
    };
    this.endTokens = Array.from({ length: info.vocabularySize }, (_, token) => token).filter((token) =>
      model.isEndOfGeneration(token),
    );
    this.tokenizer = new TokenizerQueue(model, {
      // As many as the engine itself takes: nobody is turned away here who would find room there.
      limit: options.maxSequences + options.queueLimit,
      deadlineMs: options.queueDeadlineMs,
    });
    this.line = new WaitingLine({
      tryEnter: (tokens) => this.tryOpen(tokens),
      limit: options.queueLimit,
      deadlineMs: options.queueDeadlineMs,
    });
  }

  /** @throws MuserError CONFIG_INVALID, MODEL_LOAD_FAILED, MODEL_UNSUPPORTED, OUT_OF_MEMORY, ADDON_UNAVAILABLE, CANCELLED. */
  static async start(options: DecoderEngineOptions, signal: AbortSignal): Promise<DecoderEngine> {
    if (options.kvType === 'q8_0' && !options.flashAttention) {
      throw new MuserError('CONFIG_INVALID', 'kvType q8_0 needs flashAttention');
    }
    const model = await engineCall(() => loadModel(options.model, { threads: options.threads, signal }));
    try {
      const { maxSequences, contextTokens, chunkTokens, flashAttention, kvType, threads } = options;
      const engine = await engineCall(() =>
        Engine.create(model, { maxSequences, contextTokens, chunkTokens, flashAttention, kvType, threads }),
      );
      return new DecoderEngine(model, engine, options);
    } catch (error) {
      model.close();
      throw error;
    }
  }

  get contextTokens(): number {
    return this.options.contextTokens;
  }

  get chunkTokens(): number {
    return this.options.chunkTokens;
  }

  /** Sequences that hold room now, the most there can be, and requests that wait. */
  load(): { active: number; max: number; waiting: number } {
    return { active: this.engine.stats().sequences, max: this.options.maxSequences, waiting: this.line.length };
  }

  /**
   * Waits for room for `reserveTokens` (prompt and longest answer) and opens a sequence. The caller releases it.
   * @throws MuserError QUEUE_FULL, DEADLINE_EXCEEDED, CANCELLED, UNAVAILABLE, CONTEXT_FULL (would never fit).
   */
  admit(reserveTokens: number, signal: AbortSignal): Promise<SequenceLease> {
    return this.line.enter(reserveTokens, signal);
  }

  /** Turns away who waits, then frees engine and model. Running sequences must have been released. */
  async close(): Promise<void> {
    this.tokenizer.close();
    this.line.close();
    await engineCall(() => this.engine.close());
    this.model.close();
  }

  private tryOpen(tokens: number): SequenceLease | null {
    try {
      return new SequenceLease(this.engine, tokens, () => this.line.advance());
    } catch (error) {
      const mapped = fromEngineError(error);
      const mayFitLater = mapped.code === 'CONTEXT_FULL' && this.engine.stats().sequences > 0;
      if (mayFitLater && tokens <= this.options.contextTokens) return null;
      throw mapped;
    }
  }
}

/** A sequence and its room. */
export class SequenceLease {
  private current: Sequence;
  private released: Promise<void> | null = null;

  constructor(
    private readonly engine: Engine,
    private readonly reserveTokens: number,
    private readonly onReleased: () => void,
  ) {
    this.current = engine.open(reserveTokens);
  }

  get sequence(): Sequence {
    return this.current;
  }

  /**
   * Puts the sequence back to `position` tokens. Where the engine refuses that (rows of a window are gone), to 0; where
   * it refuses even that, a new sequence takes its place.
   * @returns the position that it got.
   */
  async rewind(position: number): Promise<number> {
    if (this.current.position === position) return position;
    for (const target of new Set([position, 0])) {
      try {
        await this.current.truncate(target);
        return target;
      } catch (error) {
        if (fromEngineError(error).code === 'CANCELLED') throw fromEngineError(error);
      }
    }
    await this.replace();
    return 0;
  }

  /** Drops the sequence with everything in it for an empty one with the same room. */
  async replace(): Promise<void> {
    if (this.released !== null) throw new MuserError('SEQUENCE_STATE', 'The sequence was released.');
    await engineCall(() => this.current.dispose());
    this.current = engineCallSync(() => this.engine.open(this.reserveTokens));
  }

  /** Cancels what runs in the sequence and gives its room to the next request. Any number of calls. */
  release(): Promise<void> {
    this.released ??= engineCall(() => this.current.dispose()).finally(this.onReleased);
    return this.released;
  }
}
