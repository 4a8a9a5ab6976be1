import { chunkBytesOf, type Geometry, MuserError, rowBytesOf, type ShardPlan, type WireType } from '@muser/protocol';

import { orAborted } from '../../src/abort.js';
import type {
  BackendHealth,
  BackendLimits,
  BackendModel,
  BackendStats,
  PrefillBackend,
  PrefillChunk,
  PrefillRun,
  PrefillTask,
} from '../../src/backend/backend.js';
import { checkTask } from '../../src/backend/check-task.js';
import { ChunkQueue } from '../../src/backend/chunk-queue.js';
import { windowRowsFrom } from '../../src/backend/window-rows.js';
import { Rows } from './rows.js';

export const PATTERN_GEOMETRY: Geometry = {
  layers: ['window', 'window', 'global'],
  kvHeads: 2,
  headDimension: 64,
  windowTokens: 100,
  ropeBase: 500_000,
  ropeLayers: 'window',
  vocabularySize: 1000,
};

/** What each half of a row is made of: depends on the prompt up to the row, as real rows do. */
function rowPattern(prefix: number, layer: number, kind: 'k' | 'v', rowBytes: number): Uint8Array {
  const row = new Uint8Array(rowBytes);
  const view = new DataView(row.buffer);
  // Exponents from 2^-8 to 2^7: never NaN or infinity.
  for (let at = 0; at < rowBytes; at += 2) {
    const mixed = Math.imul(prefix ^ (layer * 31 + (kind === 'k' ? 0 : 7) + at), 0x9e3779b1) >>> 0;
    view.setUint16(at, 0x1c00 + ((mixed >>> 16) % 0x4000), true);
  }
  return row;
}

function prefixes(tokens: Uint32Array): Uint32Array {
  let hash = 17;
  return tokens.map((token) => (hash = (Math.imul(hash, 31) + token) >>> 0));
}

export function patternRows(tokens: Uint32Array, wireType: WireType = 'f16'): Rows {
  const geometry = PATTERN_GEOMETRY;
  const count = tokens.length - 1;
  const rows = new Rows(geometry, wireType, count);
  const hashes = prefixes(tokens);
  for (const layer of geometry.layers.keys()) {
    for (const kind of ['k', 'v'] as const) {
      for (let token = 0; token < count; token += 1) {
        rows.put(layer, kind, token, rowPattern(hashes[token] ?? 0, layer, kind, rowBytesOf(geometry)));
      }
    }
  }
  return rows;
}

/** A backend whose rows are a function of the prompt and whose steps happen when a test lets them. */
export class PatternBackend implements PrefillBackend {
  readonly name = 'pattern';
  health: BackendHealth = { state: 'ready' };
  readonly model: BackendModel;
  readonly engine = { version: '1', cacheLayout: 'none' };
  readonly limits: BackendLimits;
  /** What every read fails with from now on. */
  readError: Error | null = null;
  /** What every step fails with from now on. */
  stepError: Error | null = null;
  readonly #running = new Map<PrefillRun, AbortController>();
  readonly #stepWaiters: (() => void)[] = [];
  #reached: (() => void)[] = [];
  #steps: number;
  /** The task of every chunk that is not released. */
  readonly #unreleased: PrefillTask[] = [];

  /** @param steps how many chunks may be computed until `allow` is called */
  constructor(limits: Partial<BackendLimits> = {}, steps = Infinity, geometry = PATTERN_GEOMETRY) {
    this.model = {
      geometry,
      identity: { name: 'pattern', fingerprint: new Uint8Array(32).fill(1), modelDigest: new Uint8Array(32).fill(2) },
    };
    this.limits = { maxPromptTokens: 2048, maxConcurrent: 2, chunkTokens: 64, wireTypes: ['f16'], ...limits };
    this.#steps = steps;
  }

  allow(steps: number): void {
    this.#steps += steps;
    for (const wake of this.#stepWaiters.splice(0)) wake();
  }

  /** Resolves when a step waits to be allowed. */
  async blocked(): Promise<void> {
    if (this.#stepWaiters.length > 0) return;
    await new Promise<void>((resolve) => this.#reached.push(resolve));
  }

  prefill(task: PrefillTask): PrefillRun {
    const stop = new AbortController();
    const chunks = new ChunkQueue(() => cancel(new MuserError('CANCELLED', 'the reader has left')));
    const cancel = (reason: unknown): void => {
      chunks.fail(reason);
      stop.abort(reason);
    };
    const follow = (): void => cancel(task.signal.reason);
    if (task.signal.aborted) follow();
    else task.signal.addEventListener('abort', follow, { once: true });
    const timings = { startedAtMs: null as number | null, endedAtMs: null as number | null, reusedTokens: 0 };
    const computed = this.#compute(task, chunks, timings, stop.signal)
      .then(
        () => chunks.finish(),
        (error: unknown) => chunks.fail(error),
      )
      .finally(() => {
        task.signal.removeEventListener('abort', follow);
        this.#running.delete(run);
      });
    const run: PrefillRun = { timings, computed, [Symbol.asyncIterator]: () => chunks[Symbol.asyncIterator]() };
    this.#running.set(run, stop);
    return run;
  }

  stats(): BackendStats {
    return { activePrefills: this.#running.size, reservedTokens: 0, unreleasedChunks: this.#unreleased.length };
  }

  async close(): Promise<void> {
    const runs = [...this.#running];
    for (const [, stop] of runs) stop.abort(new MuserError('CANCELLED', 'closing'));
    await Promise.all(runs.map(([run]) => run.computed));
  }

  async #compute(
    task: PrefillTask,
    chunks: ChunkQueue,
    timings: { startedAtMs: number | null; endedAtMs: number | null },
    signal: AbortSignal,
  ): Promise<void> {
    checkTask(task, this);
    signal.throwIfAborted();
    if (this.#running.size >= this.limits.maxConcurrent) throw new MuserError('CONTEXT_FULL', 'no room');
    await Promise.resolve();
    timings.startedAtMs = performance.now();
    const { chunkTokens: largest } = this.limits;
    const size = task.chunkTokens === 0 ? largest : Math.min(task.chunkTokens, largest);
    const count = task.tokens.length - 1;
    const hashes = prefixes(task.tokens);
    for (let start = 0; start < count; start += size) {
      await this.#step(signal);
      const end = Math.min(start + size, count);
      task.onProgress?.(end);
      if (end <= task.heldTokens) continue;
      chunks.push(await this.#chunk(task, hashes, Math.max(start, task.heldTokens), end, signal));
    }
    timings.endedAtMs = performance.now();
  }

  async #step(signal: AbortSignal): Promise<void> {
    // Lets others run, as an engine on its own thread does.
    await new Promise((resolve) => setImmediate(resolve));
    while (this.#steps <= 0 && !signal.aborted) {
      for (const tell of this.#reached.splice(0)) tell();
      // Aborted: the loop ends.
      await orAborted(new Promise<void>((resolve) => this.#stepWaiters.push(resolve)), signal).catch(() => undefined);
    }
    signal.throwIfAborted();
    if (this.stepError !== null) throw this.stepError;
    this.#steps -= 1;
  }

  async #chunk(
    task: PrefillTask,
    hashes: Uint32Array,
    start: number,
    end: number,
    signal: AbortSignal,
  ): Promise<PrefillChunk> {
    const { geometry } = this.model;
    const rowBytes = rowBytesOf(geometry);
    const unsent = this.#unreleased.filter((other) => other === task).length;
    const windowStart = windowRowsFrom(geometry, task, { start, end }, unsent);
    const bytes = chunkBytesOf(geometry, end - start, end - windowStart);
    await task.staging.acquire(bytes, signal);
    this.#unreleased.push(task);
    let released = false;
    return {
      start,
      end,
      windowStart,
      computedAtMs: performance.now(),
      readShard: async (plan: ShardPlan, target: Uint8Array) => {
        await new Promise((resolve) => setImmediate(resolve));
        if (released) throw new Error('read after release');
        if (this.readError !== null) throw this.readError;
        let offset = 0;
        for (const { layer, kind } of plan.parts) {
          for (let token = plan.tokenStart; token < plan.tokenStart + plan.tokenCount; token += 1) {
            target.set(rowPattern(hashes[token] ?? 0, layer, kind, rowBytes), offset);
            offset += rowBytes;
          }
        }
      },
      release: () => {
        if (released) return;
        released = true;
        this.#unreleased.splice(this.#unreleased.indexOf(task), 1);
        task.staging.release(bytes);
      },
    };
  }
}
