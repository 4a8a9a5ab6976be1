import { Engine, engineVersion, type KvExport, loadModel, type Model, type Sequence } from '@muser/metal';
import {
  fingerprintOf,
  fromEngineError,
  MAX_PAYLOAD_BYTES,
  modelNameOf,
  MuserError,
  planChunkShards,
  type ShardPlan,
} from '@muser/protocol';

import { pause } from '../abort.js';
import type {
  BackendLimits,
  BackendModel,
  BackendStats,
  EngineFacts,
  PrefillBackend,
  PrefillChunk,
  PrefillRun,
  PrefillTask,
} from './backend.js';
import { checkTask } from './check-task.js';
import { ChunkQueue } from './chunk-queue.js';
import { windowRowsFrom } from './window-rows.js';

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
  readonly #running = new Set<Run>();
  #unreleasedChunks = 0;

  private constructor(weights: Model, engine: Engine, options: LlamaOptions) {
    const { geometry, tokenizerSha256, vocabularySize, name } = weights.info;
    this.#weights = weights;
    this.#engine = engine;
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
    const run = new Run(task, {
      backend: this,
      engine: this.#engine,
      tokensPerSecond: this.#tokensPerSecond,
      countChunk: (change) => (this.#unreleasedChunks += change),
    });
    this.#running.add(run);
    void run.computed.then(() => this.#running.delete(run));
    return run;
  }

  stats(): BackendStats {
    const { sequences, reservedTokens } = this.#engine.stats();
    return { activePrefills: sequences, reservedTokens, unreleasedChunks: this.#unreleasedChunks };
  }

  async close(): Promise<void> {
    const closing = new MuserError('CANCELLED', 'the producer is closing');
    for (const run of this.#running) run.cancel(closing);
    await Promise.all([...this.#running].map((run) => run.computed));
    await this.#engine.close();
    this.#weights.close();
  }
}

interface RunContext {
  readonly backend: LlamaBackend;
  readonly engine: Engine;
  readonly tokensPerSecond: number | null;
  readonly countChunk: (change: 1 | -1) => void;
}

class Run implements PrefillRun {
  readonly computed: Promise<void>;
  readonly timings = { startedAtMs: null as number | null, endedAtMs: null as number | null, reusedTokens: 0 };
  readonly #task: PrefillTask;
  readonly #context: RunContext;
  readonly #chunks: ChunkQueue;
  readonly #stop = new AbortController();

  constructor(task: PrefillTask, context: RunContext) {
    this.#task = task;
    this.#context = context;
    this.#chunks = new ChunkQueue(() => this.cancel(new MuserError('CANCELLED', 'the reader has left')));
    const follow = (): void => this.cancel(task.signal.reason);
    if (task.signal.aborted) follow();
    else task.signal.addEventListener('abort', follow, { once: true });
    this.computed = this.#compute()
      .then(
        () => this.#chunks.finish(),
        (error: unknown) => this.#chunks.fail(fromEngineError(error)),
      )
      .finally(() => task.signal.removeEventListener('abort', follow));
  }

  /** Stops compute within one chunk; the reader gets the reason at once. */
  cancel(reason: unknown): void {
    this.#chunks.fail(reason);
    this.#stop.abort(reason);
  }

  [Symbol.asyncIterator](): AsyncIterator<PrefillChunk, void, undefined> {
    return this.#chunks[Symbol.asyncIterator]();
  }

  async #compute(): Promise<void> {
    checkTask(this.#task, this.#context.backend);
    this.#stop.signal.throwIfAborted();
    const { tokens, chunkTokens: wanted } = this.#task;
    const largest = this.#context.backend.limits.chunkTokens;
    const chunkTokens = wanted === 0 ? largest : Math.min(wanted, largest);
    const rows = tokens.length - 1;
    const sequence = this.#context.engine.open(rows);
    this.timings.startedAtMs = performance.now();
    try {
      for (let start = 0; start < rows; start += chunkTokens) {
        await this.#step(sequence, start, Math.min(start + chunkTokens, rows));
      }
    } finally {
      await sequence.dispose();
    }
  }

  /** Computes tokens [start, end) and takes their rows out at once: the window's are overwritten by later chunks. */
  async #step(sequence: Sequence, start: number, end: number): Promise<void> {
    const { tokens, heldTokens, onProgress } = this.#task;
    await sequence.evaluate(tokens.subarray(start, end), { signal: this.#stop.signal });
    await this.#pace(end);
    if (end === tokens.length - 1) this.timings.endedAtMs = performance.now();
    onProgress?.(end);
    if (end > heldTokens) this.#chunks.push(await this.#export(sequence, Math.max(start, heldTokens), end));
  }

  async #export(sequence: Sequence, start: number, end: number): Promise<PrefillChunk> {
    const { geometry } = this.#context.backend.model;
    const { wireType, staging } = this.#task;
    const windowStart = windowRowsFrom(geometry, this.#task, start, end);
    const plan = planChunkShards(
      { geometry, wireType, chunkStart: start, chunkEnd: end, windowStart },
      MAX_PAYLOAD_BYTES,
    );
    const bytes = plan.reduce((sum, shard) => sum + shard.payloadBytes, 0);
    await staging.acquire(bytes, this.#stop.signal);
    try {
      const rows = await sequence.exportRange(start, end, { windowStart });
      this.#context.countChunk(1);
      return new LlamaChunk(rows, { start, end, windowStart }, () => {
        this.#context.countChunk(-1);
        staging.release(bytes);
      });
    } catch (error) {
      staging.release(bytes);
      throw error;
    }
  }

  async #pace(tokensDone: number): Promise<void> {
    const { tokensPerSecond } = this.#context;
    if (tokensPerSecond === null || this.timings.startedAtMs === null) return;
    const dueAtMs = this.timings.startedAtMs + (tokensDone / tokensPerSecond) * 1000;
    const waitMs = dueAtMs - performance.now();
    if (waitMs > 0) await pause(waitMs, this.#stop.signal);
    this.#stop.signal.throwIfAborted();
  }
}

class LlamaChunk implements PrefillChunk {
  readonly start: number;
  readonly end: number;
  readonly windowStart: number;
  readonly computedAtMs = performance.now();
  readonly #rows: KvExport;
  #onRelease: (() => void) | null;

  constructor(rows: KvExport, range: { start: number; end: number; windowStart: number }, onRelease: () => void) {
    this.start = range.start;
    this.end = range.end;
    this.windowStart = range.windowStart;
    this.#rows = rows;
    this.#onRelease = onRelease;
  }

  // Copying is all that is to be done, so the promise is settled when it is returned.
  readShard(plan: ShardPlan, target: Uint8Array): Promise<void> {
    return new Promise((resolve) => {
      let offset = 0;
      for (const { layer, kind } of plan.parts) {
        offset += this.#rows.read(layer, kind, plan.tokenStart, plan.tokenCount, target, offset);
      }
      if (offset !== plan.payloadBytes) {
        throw new MuserError('INTERNAL', `a shard of ${plan.payloadBytes} bytes was read as ${offset} bytes`);
      }
      resolve();
    });
  }

  release(): void {
    const onRelease = this.#onRelease;
    if (onRelease === null) return;
    this.#onRelease = null;
    this.#rows.dispose();
    onRelease();
  }
}
