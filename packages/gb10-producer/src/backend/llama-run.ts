import type { Sequence } from '@muser/metal';
import { chunkBytesOf, fromEngineError, MuserError } from '@muser/protocol';

import { pause } from '../abort.js';
import type { PrefillBackend, PrefillChunk, PrefillRun, PrefillTask } from './backend.js';
import { checkTask } from './check-task.js';
import { piecesOf, type RowRange } from './chunk-pieces.js';
import { ChunkQueue } from './chunk-queue.js';
import type { KeptPrompts } from './kept-prompts.js';
import { LlamaChunk } from './llama-chunk.js';
import { windowRowsFrom } from './window-rows.js';

export interface LlamaRunContext {
  readonly backend: Pick<PrefillBackend, 'model' | 'limits'>;
  readonly kept: KeptPrompts;
  /** Compute no faster than this; null does not limit. */
  readonly tokensPerSecond: number | null;
  readonly countChunk: (change: 1 | -1) => void;
}

/** One prefill by llama.cpp: what a former one left is taken out first, the rest is computed and taken out chunk by chunk. */
export class LlamaRun implements PrefillRun {
  readonly computed: Promise<void>;
  readonly timings = { startedAtMs: null as number | null, endedAtMs: null as number | null, reusedTokens: 0 };
  readonly #task: PrefillTask;
  readonly #context: LlamaRunContext;
  readonly #chunkTokens: number;
  /** Rows to compute and to send: all but the prompt's last one. */
  readonly #rows: number;
  readonly #chunks: ChunkQueue;
  readonly #stop = new AbortController();
  /** Chunks that were taken out and are not released. */
  #unsent = 0;

  constructor(task: PrefillTask, context: LlamaRunContext) {
    this.#task = task;
    this.#context = context;
    const largest = context.backend.limits.chunkTokens;
    this.#chunkTokens = task.chunkTokens === 0 ? largest : Math.min(task.chunkTokens, largest);
    this.#rows = task.tokens.length - 1;
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
    const { backend, kept } = this.#context;
    checkTask(this.#task, backend);
    this.#stop.signal.throwIfAborted();
    const { cacheScope } = this.#task;
    const tokens = this.#task.tokens.subarray(0, this.#rows);
    const sequence = await kept.open(cacheScope, tokens, (former) => this.#hasLastWindow(former));
    try {
      this.#stop.signal.throwIfAborted();
      this.timings.startedAtMs = performance.now();
      const reused = sequence.position;
      if (reused > 0) await this.#exportReused(sequence, reused);
      for (let start = reused; start < this.#rows;) {
        const end = Math.min(start - (start % this.#chunkTokens) + this.#chunkTokens, this.#rows);
        await this.#step(sequence, start, end);
        start = end;
      }
    } finally {
      // Also after a Seal: the reader may not have got it.
      await kept.keep(cacheScope, tokens, sequence);
    }
  }

  /** Computes tokens [start, end) and takes their rows out at once: the window's are overwritten by later chunks. */
  async #step(sequence: Sequence, start: number, end: number): Promise<void> {
    const { tokens, heldTokens } = this.#task;
    await sequence.evaluate(tokens.subarray(start, end), { signal: this.#stop.signal });
    await this.#pace(end);
    this.#reached(end);
    if (end <= heldTokens) return;
    const from = Math.max(start, heldTokens);
    this.#chunks.push(await this.#export(sequence, { start: from, end, windowStart: this.#windowRowsFrom(from, end) }));
  }

  #reached(end: number): void {
    if (end === this.#rows) this.timings.endedAtMs = performance.now();
    this.#task.onProgress?.(end);
  }

  /** Hands out the rows that a former prefill computed and the reader does not hold. */
  async #exportReused(sequence: Sequence, reused: number): Promise<void> {
    const { geometry } = this.#context.backend.model;
    const { heldTokens } = this.#task;
    this.timings.reusedTokens = reused;
    this.#reached(reused);
    if (reused <= heldTokens) return;
    const range = { start: heldTokens, end: reused, windowStart: this.#firstWindowRow(reused) };
    for (const piece of piecesOf(geometry, heldTokens, range, this.#chunkTokens)) {
      const { start, end } = piece;
      const windowStart = piece.windowStart === end ? end : this.#windowRowsFrom(start, end);
      this.#chunks.push(await this.#export(sequence, { start, end, windowStart }));
    }
  }

  #windowRowsFrom(start: number, end: number): number {
    return windowRowsFrom(this.#context.backend.model.geometry, this.#task, { start, end }, this.#unsent);
  }

  /**
   * First window row to take out of a former prefill that ends at `end`. One row less than a window is certain to be
   * there, which is what decoding needs; the last row of a whole window is sent only where the prompt ends.
   */
  #firstWindowRow(end: number): number {
    const { windowTokens } = this.#context.backend.model.geometry;
    if (windowTokens === 0) return end;
    return Math.max(this.#task.heldTokens, end - windowTokens + (end === this.#rows ? 0 : 1));
  }

  /** Whether the row of the last window that is not certain to be there is there, if it has to be sent. */
  async #hasLastWindow(sequence: Sequence): Promise<boolean> {
    const { windowTokens } = this.#context.backend.model.geometry;
    const row = this.#rows - windowTokens;
    if (windowTokens === 0 || sequence.position < this.#rows || row < this.#task.heldTokens) return true;
    const found = await sequence.exportRange(row, row + 1, { windowStart: row }).catch(() => null);
    found?.dispose();
    return found !== null;
  }

  async #export(sequence: Sequence, { start, end, windowStart }: RowRange): Promise<PrefillChunk> {
    const { geometry } = this.#context.backend.model;
    const { staging } = this.#task;
    const bytes = chunkBytesOf(geometry, end - start, end - windowStart);
    await staging.acquire(bytes, this.#stop.signal);
    try {
      const rows = await sequence.exportRange(start, end, { windowStart });
      this.#unsent += 1;
      this.#context.countChunk(1);
      return new LlamaChunk(rows, { start, end, windowStart }, () => {
        this.#unsent -= 1;
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
    const computed = tokensDone - this.timings.reusedTokens;
    const waitMs = this.timings.startedAtMs + (computed / tokensPerSecond) * 1000 - performance.now();
    if (waitMs > 0) await pause(waitMs, this.#stop.signal);
    this.#stop.signal.throwIfAborted();
  }
}
