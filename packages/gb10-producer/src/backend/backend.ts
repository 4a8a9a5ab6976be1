/**
 * What a prefill engine offers to the producer. Everything else (tickets, queueing, signing, the wire) is the same for
 * every engine and lives in ../transfer.
 *
 * An engine in this process (llama.cpp) copies a chunk's rows as soon as they are computed; one in another process (vLLM)
 * may fetch a shard's rows only when they are read. Both fit: `readShard` is asynchronous and a chunk holds what it needs
 * until it is released.
 */
import type { Geometry, ModelIdentity, ShardPlan, WireType } from '@muser/protocol';

export interface BackendModel {
  readonly identity: ModelIdentity;
  readonly geometry: Geometry;
}

/** What a record of this engine's results has to say. */
export interface EngineFacts {
  /** Of the engine itself. */
  readonly version: string;
  /** How its KV cache lies in memory, as the engine's side of this producer found it. */
  readonly cacheLayout: string;
}

export interface BackendLimits {
  /** Longest prompt in tokens, the last one (which is not prefilled) included. */
  readonly maxPromptTokens: number;
  /** Prefills that may compute at the same time. */
  readonly maxConcurrent: number;
  /** Largest compute chunk in tokens. */
  readonly chunkTokens: number;
  /** Forms of a row that `readShard` can write, the preferred one first. */
  readonly wireTypes: readonly WireType[];
}

/** Bytes that computed chunks may occupy until they are sent. */
export interface StagingBudget {
  /** Waits until the bytes are free. Rejects when the signal aborts. */
  acquire(bytes: number, signal: AbortSignal): Promise<void>;
  release(bytes: number): void;
}

export interface PrefillTask {
  /** The whole prompt, N tokens, N >= 2. Tokens [0, N-1) are evaluated; rows [heldTokens, N-1) are exported. */
  readonly tokens: Uint32Array;
  /** Leading tokens whose rows the reader has already; less than N-1. */
  readonly heldTokens: number;
  /** Wanted compute chunk in tokens; 0 or more than the limit means the backend's own. */
  readonly chunkTokens: number;
  readonly wireType: WireType;
  /** Cached rows are reused only between tasks of one scope, so that timing tells one user nothing of another. */
  readonly cacheScope: string;
  readonly staging: StagingBudget;
  /** Stops compute within one chunk and frees everything that nobody holds. */
  readonly signal: AbortSignal;
  /** Called with the number of tokens evaluated so far, reused ones included. */
  readonly onProgress?: (tokensPrefilled: number) => void;
}

/** One computed token range. Chunks come in order, without gaps, from heldTokens to N-1. */
export interface PrefillChunk {
  readonly start: number;
  readonly end: number;
  /** First row of the window layers that is present; `end` when this chunk brings none. */
  readonly windowStart: number;
  /** When its last row could be read, by `performance.now()`. */
  readonly computedAtMs: number;
  /**
   * Writes the shard's rows in wire form: its parts in the plan's order, `plan.payloadBytes` bytes in all. Rejects when
   * the task is cancelled. The chunk is released only when every read has settled.
   */
  readShard(plan: ShardPlan, target: Uint8Array): Promise<void>;
  /** Gives memory and staging budget back. Must be called once for every chunk received; more calls do nothing. */
  release(): void;
}

/** Moments are those of `performance.now()`, null while not reached. */
export interface PrefillTimings {
  readonly startedAtMs: number | null;
  readonly endedAtMs: number | null;
  /** Tokens whose rows came from the engine's own cache instead of being computed. */
  readonly reusedTokens: number;
}

/**
 * A prefill under way. Compute starts at once and goes on while earlier chunks are read, as far as the staging budget
 * reaches. Iterate once; leaving the loop early cancels. The iterator throws a MuserError when the prefill fails.
 */
export interface PrefillRun extends AsyncIterable<PrefillChunk> {
  readonly timings: PrefillTimings;
  /** Resolves (never rejects) when compute has ended, whichever way, and the engine is free for another task. */
  readonly computed: Promise<void>;
}

export interface BackendStats {
  /** Prefills that occupy the engine now. */
  readonly activePrefills: number;
  /** Tokens of engine memory that they reserve. */
  readonly reservedTokens: number;
  /** Chunks that were handed out or wait to be, and are not yet released. */
  readonly unreleasedChunks: number;
}

/**
 * ready: takes prefills; also when the engine has unloaded its model while idle, because a prefill loads it again.
 * starting: the engine is being started again. error: somebody has to do something; the reason says what.
 */
export type BackendHealth =
  | { readonly state: 'ready'; readonly unloaded?: true }
  | { readonly state: 'starting' | 'error'; readonly reason: string };

export interface PrefillBackend {
  /** Short and fixed: "llama", "vllm". */
  readonly name: string;
  readonly model: BackendModel;
  readonly engine: EngineFacts;
  readonly limits: BackendLimits;
  readonly health: BackendHealth;
  /** Never throws: what is wrong with a task is thrown by the run's iterator. */
  prefill(task: PrefillTask): PrefillRun;
  stats(): BackendStats;
  /** Cancels what runs, then frees the engine. */
  close(): Promise<void>;
}
