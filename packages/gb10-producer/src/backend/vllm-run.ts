import { randomUUID } from 'node:crypto';

import { chunkBytesOf, type ErrorCode, MuserError, type ShardPlan } from '@muser/protocol';

import { orAborted, orLate } from '../abort.js';
import { readError, type RankLink } from '../bridge/rank-link.js';
import type { ChunkHeader, EndReason, FailureCode, FinishedHeader } from '../bridge/schema.js';
import type { WorkerUse } from '../bridge/supervisor.js';
import type { VllmWorker } from '../bridge/worker.js';
import type { PrefillBackend, PrefillChunk, PrefillRun, PrefillTask } from './backend.js';
import { checkTask } from './check-task.js';
import { piecesOf, type RowRange } from './chunk-pieces.js';
import { ChunkQueue } from './chunk-queue.js';
import { readShardFromRanks } from './rank-rows.js';
import { reachesLastWindow, windowRowsFrom } from './window-rows.js';

/** Chunks and the news that compute has ended come by different sockets. */
const LAST_CHUNK_LIMIT_MS = 10_000;

export interface RunContext {
  readonly backend: Pick<PrefillBackend, 'model' | 'limits'>;
  /** A worker that has not stopped a cancelled prefill by then is hung, although it gives signs of life. */
  readonly stopLimitMs: number;
  /** Takes one of the places for running prefills. @throws MuserError CONTEXT_FULL and others */
  readonly admit: (task: PrefillTask) => void;
  readonly useWorker: (run: VllmRun, signal: AbortSignal) => Promise<WorkerUse>;
  /** The ranks of the worker that has them all, without repetition. */
  readonly ranksOf: (use: WorkerUse) => readonly RankLink[];
  /** Compute has ended. @param failed the worker, when it ended while it computed this */
  readonly onComputed: (failed: VllmWorker | null) => void;
  /** Nothing in the worker belongs to the run any more. */
  readonly onSettled: (run: VllmRun) => void;
  readonly countChunk: (change: 1 | -1) => void;
}

/** A range that every rank has announced, and how many of the chunks made of it are not released. */
interface Announced {
  readonly index: number;
  readonly atMs: number;
  unreleased: number;
}

interface Piece extends RowRange {
  readonly of: Announced;
}

/** One prefill in the worker: asked for, announced chunk by chunk, read, given back. */
export class VllmRun implements PrefillRun {
  readonly id = randomUUID();
  readonly task: PrefillTask;
  readonly computed: Promise<void>;
  readonly timings = { startedAtMs: null as number | null, endedAtMs: null as number | null, reusedTokens: 0 };
  /** How often vLLM gave this prefill's blocks to others and computed them again; known when compute has ended. */
  preemptions = 0;
  readonly #context: RunContext;
  readonly #chunks: ChunkQueue;
  readonly #stop = new AbortController();
  readonly #pieces: Piece[] = [];
  /** By index: what some ranks have announced and others not yet. */
  readonly #partly = new Map<number, { header: ChunkHeader; ranks: Set<RankLink> }>();
  #announcedTo: number;
  #nextIndex = 0;
  #wakeHandOut: () => void = () => {};
  #onFinished: (header: FinishedHeader) => void = () => {};
  #use: WorkerUse | null = null;
  #ranks: readonly RankLink[] = [];
  #unreleased = 0;
  #computing = true;
  #handingOut = false;
  #allHandedOut = false;
  #settled = false;
  readonly #unfollow: (() => void)[] = [];

  constructor(task: PrefillTask, context: RunContext) {
    this.task = task;
    this.#context = context;
    this.#announcedTo = task.heldTokens;
    this.#chunks = new ChunkQueue(() => {
      // A reader that has got every chunk may still read them.
      if (!this.#allHandedOut) this.cancel(new MuserError('CANCELLED', 'the reader has left'));
    });
    this.#follow(task.signal);
    this.computed = this.#run();
  }

  /** Stops compute within one step; the reader gets the reason at once. */
  cancel(reason: unknown): void {
    if (this.#stop.signal.aborted) return;
    this.#stop.abort(reason);
    if (!this.#settled) this.#use?.worker.abort(this.id);
    this.#chunks.fail(reason);
    this.#wakeHandOut();
    this.#settleWhenFree();
  }

  [Symbol.asyncIterator](): AsyncIterator<PrefillChunk, void, undefined> {
    return this.#chunks[Symbol.asyncIterator]();
  }

  onFinished(header: FinishedHeader): void {
    this.#onFinished(header);
  }

  /** @throws MuserError when the worker's announcements do not fit together: it is broken then */
  onChunk(rank: RankLink, header: ChunkHeader): void {
    if (!this.#ranks.includes(rank)) return;
    const known = this.#partly.get(header.index) ?? { header, ranks: new Set() };
    const { start, end } = known.header;
    if (header.index < this.#nextIndex || known.ranks.has(rank) || header.start !== start || header.end !== end) {
      throw new MuserError('ORDER_VIOLATION', `rank ${rank.rank} announced chunk ${header.index} in another way`);
    }
    known.ranks.add(rank);
    const windowStart = Math.max(known.header.windowStart, header.windowStart);
    this.#partly.set(header.index, { header: { ...header, windowStart }, ranks: known.ranks });
    if (known.ranks.size < this.#ranks.length) return;
    this.#partly.delete(header.index);
    this.#announce({ ...header, windowStart });
  }

  onEnded(reason: EndReason): void {
    if (reason !== 'DONE') this.cancel(readError(reason));
  }

  /** Until the run is settled, the signal cancels it. */
  #follow(signal: AbortSignal): void {
    const onAbort = (): void => this.cancel(signal.reason);
    if (signal.aborted) return onAbort();
    signal.addEventListener('abort', onAbort);
    this.#unfollow.push(() => signal.removeEventListener('abort', onAbort));
  }

  async #run(): Promise<void> {
    let admitted = false;
    try {
      checkTask(this.task, this.#context.backend);
      this.#stop.signal.throwIfAborted();
      this.#context.admit(this.task);
      admitted = true;
      this.#use = await this.#context.useWorker(this, this.#stop.signal);
      await this.#compute(this.#use);
    } catch (error) {
      this.cancel(error);
    }
    this.#computing = false;
    if (admitted) this.#context.onComputed(this.#workerThatFailed());
    this.#settleWhenFree();
    this.#wakeHandOut();
  }

  #workerThatFailed(): VllmWorker | null {
    const worker = this.#use?.worker;
    return worker?.failed.aborted === true && this.timings.endedAtMs === null ? worker : null;
  }

  async #compute(use: WorkerUse): Promise<void> {
    const { worker } = use;
    const { tokens, heldTokens, cacheScope } = this.task;
    this.#follow(worker.failed);
    this.#stop.signal.throwIfAborted();
    this.#ranks = this.#context.ranksOf(use);
    const finished = new Promise<FinishedHeader>((resolve) => (this.#onFinished = resolve));
    this.timings.startedAtMs = performance.now();
    worker.prefill({ id: this.id, heldTokens, cacheScope }, tokens);
    void this.#handOut();
    const header = await this.#orStopped(orAborted(finished, worker.failed), worker);
    if (!header.ok) throw failureOf(header.code, header.message);
    this.preemptions = header.preemptions;
    this.timings.reusedTokens = Math.min(header.reusedTokens, tokens.length - 1);
    this.timings.endedAtMs = performance.now();
    this.#expectLastChunk();
  }

  /** After a cancel the worker still tells when it has stopped; only then the place is free. */
  async #orStopped(finished: Promise<FinishedHeader>, worker: VllmWorker): Promise<FinishedHeader> {
    try {
      return await orAborted(finished, this.#stop.signal);
    } catch (error) {
      await orLate(finished, this.#context.stopLimitMs, () => new Error('late')).catch(() => {
        // Without effect when the worker has ended anyway.
        worker.giveUp('it does not stop a prefill that was cancelled');
      });
      throw error;
    }
  }

  #expectLastChunk(): void {
    const end = this.task.tokens.length - 1;
    const deadline = setTimeout(() => {
      if (this.#announcedTo === end || this.#stop.signal.aborted) return;
      this.cancel(new MuserError('ENGINE_FAILED', `vLLM announced ${this.#announcedTo} of ${end} rows`));
    }, LAST_CHUNK_LIMIT_MS);
    deadline.unref();
  }

  #announce({ index, start, end, windowStart }: ChunkHeader): void {
    const { tokens, heldTokens, chunkTokens: wanted, onProgress } = this.task;
    const { model, limits } = this.#context.backend;
    const fits = start === this.#announcedTo && start < end && end < tokens.length && index === this.#nextIndex;
    if (!fits || windowStart < start || windowStart > end) {
      throw new MuserError('RANGE_VIOLATION', `the worker announced rows [${start}, ${end}) as chunk ${index}`);
    }
    this.#announcedTo = end;
    this.#nextIndex = index + 1;
    const size = wanted === 0 ? limits.chunkTokens : Math.min(wanted, limits.chunkTokens);
    const pieces = piecesOf(model.geometry, heldTokens, { start, end, windowStart }, size);
    const of = { index, atMs: performance.now(), unreleased: pieces.length };
    this.#pieces.push(...pieces.map((piece) => ({ ...piece, of })));
    if (!this.#stop.signal.aborted) onProgress?.(end);
    this.#wakeHandOut();
  }

  /** Hands chunks to the reader as fast as the staging budget lets it; compute does not wait for that. */
  async #handOut(): Promise<void> {
    this.#handingOut = true;
    try {
      for (let handedTo = this.task.heldTokens; handedTo < this.task.tokens.length - 1;) {
        const piece = this.#pieces.shift();
        if (piece === undefined) await this.#more();
        else handedTo = await this.#offer(piece);
      }
      // The end of the iteration says that the engine is free, so it waits for that.
      while (this.#computing) await this.#more();
      this.#allHandedOut = true;
      this.#chunks.finish();
    } catch (error) {
      this.cancel(error);
    } finally {
      this.#handingOut = false;
      this.#settleWhenFree();
    }
  }

  async #more(): Promise<void> {
    const woken = new Promise<void>((resolve) => (this.#wakeHandOut = resolve));
    this.#stop.signal.throwIfAborted();
    await woken;
    this.#stop.signal.throwIfAborted();
  }

  async #offer(piece: Piece): Promise<number> {
    const { geometry } = this.#context.backend.model;
    const { staging } = this.task;
    const { start, end, of } = piece;
    const windowStart = piece.windowStart === end ? end : windowRowsFrom(geometry, this.task, piece, this.#unreleased);
    if (windowStart === end && reachesLastWindow(geometry, this.task, end)) throw readError('STAGING_FULL');
    const bytes = chunkBytesOf(geometry, end - start, end - windowStart);
    await staging.acquire(bytes, this.#stop.signal);
    this.#unreleased += 1;
    this.#context.countChunk(1);
    const release = (): void => {
      this.#unreleased -= 1;
      this.#context.countChunk(-1);
      staging.release(bytes);
      of.unreleased -= 1;
      if (of.unreleased === 0 && !this.#stop.signal.aborted) this.#use?.worker.release(this.id, of.index);
      this.#settleWhenFree();
    };
    this.#chunks.push(
      new VllmChunk(
        { start, end, windowStart },
        of.atMs,
        (plan, target) => this.#read(of.index, plan, target),
        release,
      ),
    );
    return end;
  }

  #read(index: number, plan: ShardPlan, target: Uint8Array): Promise<void> {
    const { signal } = this.#stop;
    const { geometry } = this.#context.backend.model;
    return orAborted(readShardFromRanks(geometry, this.#ranks, { id: this.id, index, plan, target, signal }), signal);
  }

  #settleWhenFree(): void {
    const cancelled = this.#stop.signal.aborted;
    const allRead = this.#unreleased === 0 && this.#pieces.length === 0 && !this.#handingOut;
    if (this.#settled || this.#computing || !(cancelled || allRead)) return;
    this.#settled = true;
    for (const unfollow of this.#unfollow) unfollow();
    if (!cancelled) this.#use?.worker.done(this.id);
    this.#use?.release();
    this.#context.onSettled(this);
  }
}

class VllmChunk implements PrefillChunk {
  readonly start: number;
  readonly end: number;
  readonly windowStart: number;
  readonly computedAtMs: number;
  readonly readShard: PrefillChunk['readShard'];
  #onRelease: (() => void) | null;

  constructor(range: RowRange, computedAtMs: number, read: PrefillChunk['readShard'], onRelease: () => void) {
    this.start = range.start;
    this.end = range.end;
    this.windowStart = range.windowStart;
    this.computedAtMs = computedAtMs;
    this.readShard = read;
    this.#onRelease = onRelease;
  }

  release(): void {
    const onRelease = this.#onRelease;
    this.#onRelease = null;
    onRelease?.();
  }
}

const FAILURES = {
  CANCELLED: 'CANCELLED',
  OUT_OF_MEMORY: 'OUT_OF_MEMORY',
  INVALID_REQUEST: 'INVALID_REQUEST',
  ENGINE_FAILED: 'ENGINE_FAILED',
  STAGING_FULL: 'RESOURCE_EXHAUSTED',
  PREEMPTED: 'CONTEXT_FULL',
} as const satisfies Record<FailureCode, ErrorCode>;

function failureOf(code: FailureCode, message: string): MuserError {
  return new MuserError(FAILURES[code], `vLLM: ${message}`);
}
