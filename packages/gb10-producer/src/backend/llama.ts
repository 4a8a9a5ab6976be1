import { Engine, engineVersion, loadModel, type Model } from '@muser/metal';
import { fingerprintOf, fromEngineError, modelNameOf, MuserError } from '@muser/protocol';

import type {
  BackendLimits,
  BackendModel,
  BackendStats,
  EngineFacts,
  PrefillBackend,
  PrefillRun,
  PrefillTask,
} from './backend.js';
import { KeptPrompts } from './kept-prompts.js';
import { LlamaRun } from './llama-run.js';

export interface LlamaOptions {
  /** Path of the GGUF file. */
  readonly modelPath: string;
  /** SHA-256 of that file. */
  readonly modelDigest: Uint8Array;
  readonly chunkTokens: number;
  readonly maxPromptTokens: number;
  readonly maxConcurrent: number;
  readonly threads: number;
  readonly flashAttention: boolean;
  readonly kvType: 'f16' | 'q8_0';
  /** Prefill no faster than this; null does not limit. */
  readonly tokensPerSecond: number | null;
}

/** llama.cpp in this process, by the same addon that decodes on the other side. */
export class LlamaBackend implements PrefillBackend {
  readonly name = 'llama';
  readonly health = { state: 'ready' } as const;
  readonly model: BackendModel;
  readonly engine: EngineFacts;
  readonly limits: BackendLimits;
  readonly #engine: Engine;
  readonly #weights: Model;
  readonly #tokensPerSecond: number | null;
  readonly #kept: KeptPrompts;
  readonly #running = new Set<LlamaRun>();
  #unreleasedChunks = 0;

  private constructor(weights: Model, engine: Engine, options: LlamaOptions) {
    const { geometry, tokenizerSha256, vocabularySize, name } = weights.info;
    this.#weights = weights;
    this.#engine = engine;
    this.#kept = new KeptPrompts(engine);
    this.#tokensPerSecond = options.tokensPerSecond;
    const wireGeometry = { ...geometry, vocabularySize };
    this.model = {
      geometry: wireGeometry,
      identity: {
        name: modelNameOf(options.modelPath, name),
        modelDigest: options.modelDigest,
        fingerprint: fingerprintOf({ geometry: wireGeometry, tokenizerSha256 }),
      },
    };
    this.engine = { version: engineVersion(), cacheLayout: `llama.cpp sequence state, ${options.kvType}` };
    this.limits = {
      maxPromptTokens: options.maxPromptTokens,
      maxConcurrent: options.maxConcurrent,
      chunkTokens: options.chunkTokens,
      wireTypes: ['f16'],
    };
  }

  /** @throws MuserError CONFIG_INVALID, MODEL_LOAD_FAILED, MODEL_UNSUPPORTED, OUT_OF_MEMORY, ADDON_UNAVAILABLE */
  static async open(options: LlamaOptions, signal?: AbortSignal): Promise<LlamaBackend> {
    if (options.kvType === 'q8_0' && !options.flashAttention) {
      throw new MuserError('CONFIG_INVALID', 'kvType q8_0 needs flashAttention');
    }
    let weights: Model | null = null;
    try {
      weights = await loadModel(options.modelPath, { threads: options.threads, ...(signal && { signal }) });
      const { localOnly } = weights.info;
      if (localOnly !== null) {
        throw new MuserError('MODEL_UNSUPPORTED', `rows of this model cannot be handed over: ${localOnly}`);
      }
      const engine = await Engine.create(weights, {
        maxSequences: options.maxConcurrent,
        // The last token of a prompt is never evaluated here, so this is one cell more than is used.
        contextTokens: options.maxPromptTokens * options.maxConcurrent,
        chunkTokens: options.chunkTokens,
        flashAttention: options.flashAttention,
        kvType: options.kvType,
        threads: options.threads,
      });
      return new LlamaBackend(weights, engine, options);
    } catch (error) {
      weights?.close();
      throw fromEngineError(error);
    }
  }

  prefill(task: PrefillTask): PrefillRun {
    const run = new LlamaRun(task, {
      backend: this,
      kept: this.#kept,
      tokensPerSecond: this.#tokensPerSecond,
      countChunk: (change) => (this.#unreleasedChunks += change),
    });
    this.#running.add(run);
    void run.computed.then(() => this.#running.delete(run));
    return run;
  }

  stats(): BackendStats {
    const { sequences, reservedTokens } = this.#engine.stats();
    const { sequences: keptSequences, tokens: keptTokens } = this.#kept;
    return {
      activePrefills: sequences - keptSequences,
      reservedTokens: reservedTokens - keptTokens,
      unreleasedChunks: this.#unreleasedChunks,
    };
  }

  async close(): Promise<void> {
    const closing = new MuserError('CANCELLED', 'the producer is closing');
    for (const run of this.#running) run.cancel(closing);
    await Promise.all([...this.#running].map((run) => run.computed));
    await this.#kept.close();
    await this.#engine.close();
    this.#weights.close();
  }
}
