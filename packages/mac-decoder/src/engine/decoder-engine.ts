import { Engine, loadModel, type EngineOptions, type Model } from '@muser/metal';
import { fingerprintOf, type Geometry, type ModelIdentity, modelNameOf, MuserError } from '@muser/protocol';
import { engineCall } from '../errors/engine-errors.js';
import { TokenizerQueue } from '../chat/tokenizer-queue.js';
import { EngineRoom, type RoomLoad, type WantedRoom } from './room.js';
import type { SequenceLease } from './sequence-lease.js';

const FINGERPRINT_BYTES = 32;

export interface DecoderEngineOptions extends EngineOptions {
  /** Path of the GGUF file. */
  readonly model: string;
  /** SHA-256 of that file. */
  readonly modelDigest: Uint8Array;
  /** Most tokens of former requests whose rows stay; null: half of the context. */
  readonly keptTokens: number | null;
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
  private readonly room: EngineRoom;

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
    const keptTokens = options.keptTokens ?? Math.floor(options.contextTokens / 2);
    this.room = new EngineRoom({ ...options, keptTokens, engine });
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

  load(): RoomLoad {
    return this.room.load();
  }

  /**
   * Waits for room (prompt and longest answer) and gives a sequence, which may hold a beginning of the prompt already. The
   * caller releases it.
   * @throws MuserError QUEUE_FULL, DEADLINE_EXCEEDED, CANCELLED, UNAVAILABLE, CONTEXT_FULL (would never fit).
   */
  admit(wanted: WantedRoom, signal: AbortSignal): Promise<SequenceLease> {
    return this.room.admit(wanted, signal);
  }

  /** Frees what is kept of former requests with rows of these producers in it. */
  dropRowsOf(producerIds: readonly string[]): void {
    this.room.dropRowsOf(producerIds);
  }

  /** Turns away who waits, then frees engine and model. Running sequences must have been released. */
  async close(): Promise<void> {
    this.tokenizer.close();
    await this.room.close();
    await engineCall(() => this.engine.close());
    this.model.close();
  }
}
