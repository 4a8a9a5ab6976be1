import {
  MAX_PAYLOAD_BYTES,
  MuserError,
  planChunkShards,
  type ShardPlan,
  toMuserError,
  type TransferSender,
  withoutForeignText,
} from '@muser/protocol';
import { hashPayload } from '@muser/transport';

import { orAborted, orLate } from '../abort.js';
import type { PrefillBackend, PrefillChunk, PrefillRun, StagingBudget } from '../backend/backend.js';
import type { AdmittedRequest } from './admission.js';
import type { ComputeQueue, QueuePlace } from './compute-queue.js';
import { FrameWriter } from './frame-writer.js';

/** How often a transfer tells how far it is; a queue position is told at once. */
const PROGRESS_INTERVAL_MS = 100;
/** How often one that is not computed now says that the engine lives. Well below the silence that decoders take for a stall. */
const REMINDER_INTERVAL_MS = 2_000;
/** How long a failing transfer may take to tell the reader why. */
const ERROR_FRAME_LIMIT_MS = 1_000;

/**
 * queued: Begin is on its way, waits for the engine. prefilling: computes, and sends what is computed. sending: computed,
 * sends the rest. Then exactly one of: sealed, failed (the reader got a code), cancelled (there is no reader any more).
 */
export type TransferState = 'queued' | 'prefilling' | 'sending' | 'sealed' | 'failed' | 'cancelled';

export interface TransferParts {
  readonly admitted: AdmittedRequest;
  /** Whose cached rows it may use. */
  readonly cacheScope: string;
  readonly sender: TransferSender;
  readonly send: (frame: Buffer) => Promise<void>;
  /** Aborts when the reader is gone. */
  readonly readerGone: AbortSignal;
  readonly backend: PrefillBackend;
  readonly queue: ComputeQueue;
  readonly staging: StagingBudget;
  /** Hears whenever some of its tokens have been computed. */
  readonly onComputed: () => void;
  /** Moment of receipt by `performance.now()`; the deadline counts from it. */
  readonly receivedAtMs: number;
}

type Scratch = Uint8Array<ArrayBuffer>;

interface PreparedShard {
  readonly payload: Scratch;
  readonly sha256: Uint8Array;
}

interface TransferEnd {
  readonly state: 'sealed' | 'failed' | 'cancelled';
  readonly error: MuserError | null;
  /** The reader has got the error as an Error frame. */
  readonly told: boolean;
}

export interface TransferOutcome extends TransferEnd {
  readonly payloadBytes: number;
  readonly shards: number;
  readonly queueMs: number;
  /** Null when the prefill was not computed to its end. */
  readonly prefillMs: number | null;
  /** From a chunk's last row being computed until the stream has taken its last shard: of all chunks; null without any. */
  readonly chunkSendMs: { readonly mean: number; readonly slowest: number } | null;
  readonly computedTokens: number;
}

/** One admitted request on its way to a Seal, an Error frame, or a reader that is gone. */
export class Transfer {
  readonly #parts: TransferParts;
  readonly #stop = new AbortController();
  readonly #signal: AbortSignal;
  readonly #writer: FrameWriter;
  #state: TransferState = 'queued';
  /** As it was reported last. */
  #progress = { queuePosition: 0, tokensPrefilled: 0 };
  #run: PrefillRun | null = null;
  #beginAtMs = 0;
  #turnAtMs: number | null = null;
  #payloadBytes = 0;
  #shards = 0;
  #chunks = 0;
  readonly #chunkSendMs = { sum: 0, slowest: 0 };

  constructor(parts: TransferParts) {
    this.#parts = parts;
    this.#signal = AbortSignal.any([this.#stop.signal, parts.readerGone]);
    this.#writer = new FrameWriter({
      send: parts.send,
      encodeProgress: (progress) => parts.sender.progress(progress),
      signal: this.#signal,
    });
  }

  get state(): TransferState {
    return this.#state;
  }

  /**
   * The engine has computed something for another transfer. Without a word of it this one would be taken for stalled while
   * it waits, in our queue or in that of the engine; when the engine itself stands still, nobody gets one.
   */
  remind(): void {
    if (this.#state === 'queued' || this.#state === 'prefilling') this.#report(this.#progress, REMINDER_INTERVAL_MS);
  }

  /** Ends the transfer with this error, whatever it does now. */
  cancel(error: MuserError): void {
    this.#stop.abort(error);
  }

  /**
   * Takes a place in the queue and carries the transfer out. Resolves when everything is freed. What goes wrong after the
   * queue accepted it is told to the reader by an Error frame and is part of the outcome.
   *
   * @throws MuserError QUEUE_FULL, before anything was sent
   */
  async run(): Promise<TransferOutcome> {
    const { request } = this.#parts.admitted;
    const place = this.#parts.queue.join((ahead) => this.#reportPosition(ahead));
    const deadline = setTimeout(() => {
      const message = `the transfer was not complete ${request.deadlineMs} ms after the request`;
      this.cancel(new MuserError('DEADLINE_EXCEEDED', message, { details: { deadlineMs: request.deadlineMs } }));
    }, this.#remainingMs());
    let end: TransferEnd = { state: 'sealed', error: null, told: false };
    try {
      await this.#carryOut(place);
      this.#state = 'sealed';
    } catch (cause) {
      end = await this.#fail(cause);
    } finally {
      clearTimeout(deadline);
      await this.#run?.computed;
      place.leave();
    }
    return { ...end, ...this.#figures() };
  }

  async #carryOut(place: QueuePlace): Promise<void> {
    const { sender } = this.#parts;
    this.#beginAtMs = performance.now();
    const begun = this.#writer.write(sender.begin());
    if (place.ahead > 0) this.#reportPosition(place.ahead);
    await begun;
    await place.turn(this.#signal);
    if (place.ahead > 0) this.#reportPosition(0);
    this.#turnAtMs = performance.now();
    this.#state = 'prefilling';
    const run = this.#prefill(place);
    for await (const chunk of run) {
      try {
        await this.#sendChunk(chunk);
      } finally {
        chunk.release();
      }
    }
    this.#signal.throwIfAborted();
    await this.#writer.write(
      sender.seal({
        prefillStartUs: this.#microsecondsSinceBegin(run.timings.startedAtMs),
        prefillEndUs: this.#microsecondsSinceBegin(run.timings.endedAtMs),
        queueUs: this.#microsecondsSinceBegin(this.#turnAtMs),
        reusedTokens: run.timings.reusedTokens,
      }),
    );
  }

  #prefill(place: QueuePlace): PrefillRun {
    const { admitted, backend, cacheScope, staging } = this.#parts;
    const { tokens, heldTokens, chunkTokens } = admitted.request;
    const run = backend.prefill({
      tokens,
      heldTokens,
      chunkTokens,
      wireType: admitted.wireType,
      cacheScope,
      staging,
      signal: this.#signal,
      onProgress: (tokensPrefilled) => {
        this.#report({ queuePosition: 0, tokensPrefilled }, PROGRESS_INTERVAL_MS);
        this.#parts.onComputed();
      },
    });
    this.#run = run;
    // The next in the queue computes while this one sends what is left.
    void run.computed.then(() => {
      if (this.#state === 'prefilling') this.#state = 'sending';
      place.leave();
    });
    return run;
  }

  /** While a shard waits for the stream, the next one is read and hashed. */
  async #sendChunk(chunk: PrefillChunk): Promise<void> {
    const { wireType } = this.#parts.admitted;
    const { geometry } = this.#parts.backend.model;
    const { start: chunkStart, end: chunkEnd, windowStart } = chunk;
    const plans = planChunkShards({ geometry, wireType, chunkStart, chunkEnd, windowStart }, MAX_PAYLOAD_BYTES);
    const scratch = new Uint8Array(Math.max(...plans.map((plan) => plan.payloadBytes)));
    let next = this.#prepare(chunk, plans[0], scratch);
    try {
      for (const [index, plan] of plans.entries()) {
        const { payload, sha256 } = await next;
        const { tokenStart, tokenCount, parts } = plan;
        const range = { chunkIndex: this.#chunks, chunkStart, chunkEnd, windowStart, tokenStart, tokenCount, parts };
        // The frame is a copy, so the scratch memory is free for the next shard.
        const frame = this.#parts.sender.shard(range, payload, sha256);
        next = this.#prepare(chunk, plans[index + 1], scratch);
        await this.#writer.write(frame);
        this.#shards += 1;
        this.#payloadBytes += plan.payloadBytes;
      }
      this.#chunks += 1;
      const sendMs = performance.now() - chunk.computedAtMs;
      this.#chunkSendMs.sum += sendMs;
      this.#chunkSendMs.slowest = Math.max(this.#chunkSendMs.slowest, sendMs);
    } finally {
      // The chunk must not be released while one of its shards is being read.
      await next.catch(() => {});
    }
  }

  #prepare(chunk: PrefillChunk, plan: ShardPlan | undefined, scratch: Scratch): Promise<PreparedShard> {
    const prepare = async (): Promise<PreparedShard> => {
      const payload = scratch.subarray(0, plan?.payloadBytes ?? 0);
      // There is none after the last one.
      if (plan === undefined) return { payload, sha256: payload };
      await chunk.readShard(plan, payload);
      return { payload, sha256: await hashPayload(payload) };
    };
    const prepared = prepare();
    // It may fail while the frame before is still being written, when nobody waits for it yet.
    prepared.catch(() => {});
    return prepared;
  }

  #reportPosition(ahead: number): void {
    this.#report({ queuePosition: ahead, tokensPrefilled: 0 }, 0);
  }

  #report(progress: { queuePosition: number; tokensPrefilled: number }, leastGapMs: number): void {
    this.#progress = progress;
    const tokensTotal = this.#parts.admitted.request.tokens.length - 1;
    this.#writer.progress({ ...progress, tokensTotal }, leastGapMs);
  }

  async #fail(cause: unknown): Promise<TransferEnd> {
    const error = this.#classify(cause);
    const state = this.#parts.readerGone.aborted ? 'cancelled' : 'failed';
    this.#state = state;
    // Stops the prefill when it was not the prefill that failed.
    this.cancel(error);
    return { state, error, told: state === 'failed' && (await this.#tell(error)) };
  }

  /** An Error frame is best effort: the reader may be what failed, or the Seal may be on its way already. */
  async #tell(error: MuserError): Promise<boolean> {
    try {
      const told = this.#parts.send(this.#parts.sender.error(error));
      await orLate(orAborted(told, this.#parts.readerGone), ERROR_FRAME_LIMIT_MS, () => error);
      return true;
    } catch {
      return false;
    }
  }

  #classify(cause: unknown): MuserError {
    if (this.#parts.readerGone.aborted) return toMuserError(this.#parts.readerGone.reason, 'CANCELLED');
    // What aborted the transfer says more than how a step noticed it.
    if (this.#stop.signal.aborted) return toMuserError(this.#stop.signal.reason, 'CANCELLED');
    return withoutForeignText(cause);
  }

  #remainingMs(): number {
    const { admitted, receivedAtMs } = this.#parts;
    return Math.max(0, receivedAtMs + admitted.request.deadlineMs - performance.now());
  }

  #microsecondsSinceBegin(atMs: number | null): number {
    return atMs === null ? 0 : Math.max(0, Math.round((atMs - this.#beginAtMs) * 1000));
  }

  #figures(): Omit<TransferOutcome, keyof TransferEnd> {
    const { startedAtMs = null, endedAtMs = null, reusedTokens = 0 } = this.#run?.timings ?? {};
    return {
      payloadBytes: this.#payloadBytes,
      shards: this.#shards,
      queueMs: (this.#turnAtMs ?? performance.now()) - this.#beginAtMs,
      prefillMs: startedAtMs === null || endedAtMs === null ? null : endedAtMs - startedAtMs,
      chunkSendMs:
        this.#chunks === 0 ? null : { mean: this.#chunkSendMs.sum / this.#chunks, slowest: this.#chunkSendMs.slowest },
      computedTokens: this.#parts.admitted.request.tokens.length - 1 - reusedTokens,
    };
  }
}
