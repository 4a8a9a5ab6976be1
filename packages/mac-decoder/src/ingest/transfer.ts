import { EngineError, type KvStage } from '@muser/metal';
import {
  chunkBytesOf,
  MuserError,
  withoutForeignText,
  type Begin,
  type Progress,
  type TransferEvent,
} from '@muser/protocol';
import { ByteBudget } from '@muser/transport';
import type { SequenceLease } from '../engine/sequence-lease.js';
import { engineCallSync } from '../errors/engine-errors.js';
import { TransferFigures } from './figures.js';
import { InstallQueue, type ReceivedChunk } from './install-queue.js';
import { openTransfer, type WantedTransfer } from './request.js';
import { MAX_STAGED_TRANSFER_BYTES } from './staged-bytes.js';

/** Messages that may be hashed while an earlier one is handled; each has a payload of 1 MiB at most. */
const HASHES_AHEAD = 4;

/**
 * Where one transfer stands.
 *
 * | state      | what happened                                  | leaves it by                                             |
 * |------------|------------------------------------------------|----------------------------------------------------------|
 * | requested  | the request is on its way                      | a valid Begin -> receiving                               |
 * | receiving  | shards come, complete chunks are installed     | a valid Seal -> sealed                                   |
 * | sealed     | all is received; last installs may be running  | end of the stream and of the installs -> installed       |
 * | installed  | the sequence holds every row: decode           | -                                                        |
 * | failed     | any error, any time: nothing more is installed | -                                                        |
 */
export type TransferState = 'requested' | 'receiving' | 'sealed' | 'installed' | 'failed';

/** Frames of one call: `PeerClient.prefill` behind a choice of addresses. */
export type FrameSource = (
  requestBytes: Buffer,
  options: { signal: AbortSignal; deadlineMs: number; idleTimeoutMs: number },
) => AsyncIterable<Buffer>;

export interface TransferOptions extends WantedTransfer {
  readonly frames: FrameSource;
  /** Bytes of chunks between wire and cache, of all transfers of this producer. */
  readonly staged: ByteBudget;
  readonly stallTimeoutMs: number;
  /** The request's own end. What is verified stays in the sequence: its rows may be kept for the next request. */
  readonly signal: AbortSignal;
  /** Ends the transfer with its reason as the failure; the sequence goes back to the last resume point. */
  readonly leave?: AbortSignal;
  readonly now: () => number;
  readonly observer: TransferObserver;
}

/** Told of what happens, in order. */
export interface TransferObserver {
  accepted(at: number): void;
  progress(progress: Progress): void;
  received(at: number, figures: TransferFigures): void;
  sealed(at: number, figures: TransferFigures): void;
  installed(at: number, position: number, lastResumePoint: number): void;
}

export interface TransferResult {
  /** Tokens that the sequence holds now: all but the prompt's last one, or the last resume point. */
  readonly position: number;
  /** Why the transfer did not complete; null when it did. */
  readonly failure: MuserError | null;
  /** The failure is this decoder's own: it says nothing about the producer. */
  readonly failedHere: boolean;
  /** How far it came; `installed` when nothing failed. */
  readonly reached: TransferState;
  readonly figures: TransferFigures;
}

/**
 * Runs one transfer: asks the producer, verifies what comes, installs each chunk as soon as it is complete while the
 * stream goes on. After a failure the sequence is put back to its last resume point, so that it never holds a part of
 * a cache from which decoding would go on wrongly.
 *
 * @throws MuserError only when the request itself was cancelled, or the engine cannot go on.
 */
export async function transferPrefill(options: TransferOptions): Promise<TransferResult> {
  return new Transfer(options).run();
}

class Transfer {
  private state: TransferState = 'requested';
  private readonly figures = new TransferFigures();
  private readonly stop = new AbortController();
  private readonly firstToken: number;
  private readonly endToken: number;
  private readonly installs: InstallQueue;
  private readonly staged: ByteBudget;
  private lastResumePoint: number;
  private filling: { stage: KvStage; payloadBytes: number; stagedBytes: number } | null = null;
  private begin: Begin | null = null;

  constructor(private readonly options: TransferOptions) {
    this.firstToken = options.lease.sequence.position;
    this.endToken = options.tokens.length - 1;
    this.lastResumePoint = this.firstToken;
    this.staged = new ByteBudget(MAX_STAGED_TRANSFER_BYTES, options.staged);
    this.installs = new InstallQueue({
      sequence: options.lease.sequence,
      staged: this.staged,
      onInstalled: (chunk) => this.onInstalled(chunk),
      // The stream has to end at once, whatever it is waiting for.
      onFailed: (error) => this.stop.abort(error),
    });
  }

  async run(): Promise<TransferResult> {
    const { deadlineMs, leave } = this.options;
    const deadline = setTimeout(() => this.stop.abort(deadlineError(deadlineMs)), deadlineMs);
    const onLeave = (): void => this.stop.abort(leave?.reason);
    leave?.addEventListener('abort', onLeave, { once: true });
    if (leave?.aborted === true) onLeave();
    try {
      await this.receive();
      await this.installs.finished();
      this.requireWhole();
      this.state = 'installed';
      return { position: this.endToken, failure: null, failedHere: false, reached: this.state, figures: this.figures };
    } catch (error) {
      return await this.giveUp(error);
    } finally {
      clearTimeout(deadline);
      leave?.removeEventListener('abort', onLeave);
      this.discardFilling();
    }
  }

  private async receive(): Promise<void> {
    const { options } = this;
    const { requestBytes, receiver } = openTransfer(options);
    const frames = options.frames(requestBytes, {
      signal: AbortSignal.any([options.signal, this.stop.signal]),
      deadlineMs: options.deadlineMs,
      idleTimeoutMs: options.stallTimeoutMs,
    });
    // Events are handled one after another, in order, while the payloads of the next ones are hashed already.
    const ahead: Promise<void>[] = [];
    let last: Promise<void> = Promise.resolve();
    try {
      for await (const message of frames) {
        last = this.handleAfter(last, receiver.accept(message));
        // It may fail while this loop waits for the next message; then it has stopped the stream itself.
        last.catch(() => undefined);
        ahead.push(last);
        if (ahead.length > HASHES_AHEAD) await ahead.shift();
        // An install that failed meanwhile, or the deadline: leaving the loop cancels the call.
        this.stop.signal.throwIfAborted();
      }
    } finally {
      // Nothing of the stream may be handled after this returns; after the first failure nothing is.
      await Promise.allSettled(ahead);
    }
    await last;
    receiver.end();
  }

  private async handleAfter(before: Promise<void>, accepted: Promise<TransferEvent>): Promise<void> {
    // It may fail while the one before is being handled, when nobody waits for it yet.
    accepted.catch(() => undefined);
    try {
      await before;
      this.stop.signal.throwIfAborted();
      await this.handle(await accepted);
    } catch (error) {
      // The stream has to end at once, whatever it is waiting for.
      this.stop.abort(error);
      throw error;
    }
  }

  private async handle(event: TransferEvent): Promise<void> {
    const { observer, now } = this.options;
    switch (event.type) {
      case 'begin':
        this.requireRoomFor(event.begin);
        this.begin = event.begin;
        this.state = 'receiving';
        this.figures.beginAt = now();
        observer.accepted(this.figures.beginAt);
        return;
      case 'progress':
        observer.progress(event.progress);
        return;
      case 'shard':
        await this.takeShard(event);
        return;
      case 'sealed':
        this.state = 'sealed';
        this.figures.prefill = {
          startMs: event.seal.prefillStartUs / 1_000,
          endMs: event.seal.prefillEndUs / 1_000,
          queueMs: event.seal.queueUs / 1_000,
          reusedTokens: event.seal.reusedTokens,
        };
        observer.sealed(now(), this.figures);
    }
  }

  private async takeShard(event: Extract<TransferEvent, { type: 'shard' }>): Promise<void> {
    const { header, parts, chunkComplete } = event;
    const at = this.options.now();
    this.figures.addShard(at, header.chunkIndex, header.payloadBytes);
    this.options.observer.received(at, this.figures);

    this.filling ??= await this.openStage(header);
    const { filling } = this;
    const wireType = this.begin?.wireType ?? 'f16';
    filling.payloadBytes += header.payloadBytes;
    for (const { layer, kind, tokenStart, tokenCount, bytes } of parts) {
      engineCallSync(() => filling.stage.put(layer, kind, tokenStart, tokenCount, wireType, bytes));
    }
    if (chunkComplete === null) return;
    this.filling = null;
    const { end, resumePoint } = chunkComplete;
    this.figures.lastChunk = { end, at };
    this.installs.push({ ...filling, end, resumePoint });
  }

  /** Waits until there is room for the chunk beside those of this and of other transfers. */
  private async openStage(chunk: { chunkStart: number; chunkEnd: number; windowStart: number }) {
    const { geometry, lease } = this.options;
    const { chunkStart, chunkEnd, windowStart } = chunk;
    const stagedBytes = chunkBytesOf(geometry, chunkEnd - chunkStart);
    await this.staged.acquire(stagedBytes, this.stop.signal);
    try {
      const stage = engineCallSync(() => lease.sequence.stage(chunkStart, chunkEnd, windowStart));
      return { stage, payloadBytes: 0, stagedBytes };
    } catch (error) {
      this.staged.release(stagedBytes);
      throw error;
    }
  }

  private onInstalled(chunk: ReceivedChunk): void {
    const { lease, producer, now } = this.options;
    const at = now();
    this.figures.addInstall(at, chunk.payloadBytes);
    lease.origins.received(producer.nodeId, this.firstToken, chunk.end);
    if (chunk.resumePoint) this.lastResumePoint = chunk.end;
    this.options.observer.installed(at, chunk.end, this.lastResumePoint);
  }

  private requireRoomFor(begin: Begin): void {
    const bytes = chunkBytesOf(this.options.geometry, begin.chunkTokens);
    if (bytes <= this.staged.limitBytes) return;
    throw new MuserError(
      'RESOURCE_EXHAUSTED',
      `Chunks of ${begin.chunkTokens} tokens need ${bytes} bytes each; at most ${this.staged.limitBytes} are allowed.`,
    );
  }

  /** A valid Seal says that all was sent; this is our own account of what lies in the cache. */
  private requireWhole(): void {
    const { position } = this.options.lease.sequence;
    if (position === this.endToken && this.lastResumePoint === this.endToken) return;
    throw new MuserError(
      'RANGE_VIOLATION',
      `The transfer ended at ${position} of ${this.endToken} tokens, with the last resume point at ${this.lastResumePoint}.`,
    );
  }

  private async giveUp(error: unknown): Promise<TransferResult> {
    const { lease, signal } = this.options;
    const reached = this.state;
    this.state = 'failed';
    await this.installs.settled();
    this.discardFilling();
    const position = await this.restore(lease);
    if (signal.aborted) throw new MuserError('CANCELLED', 'The request was cancelled during its transfer.');
    // What stopped the stream from our side says more than how the stream took it.
    const thrown: unknown = this.stop.signal.aborted ? this.stop.signal.reason : error;
    const failure = withoutForeignText(thrown);
    return { position, failure, failedHere: isOwnFault(thrown), reached, figures: this.figures };
  }

  /** Puts the sequence to where decoding can go on from; returns that position. */
  private async restore(lease: SequenceLease): Promise<number> {
    if (this.installs.failure?.code !== 'ENGINE_FAILED') return lease.rewind(this.lastResumePoint);
    // llama.cpp can leave bytes of a failed restore behind: nothing of such a sequence is trusted.
    await lease.replace();
    return 0;
  }

  private discardFilling(): void {
    if (this.filling === null) return;
    this.filling.stage.dispose();
    this.staged.release(this.filling.stagedBytes);
    this.filling = null;
  }
}

/** Rows that the engine refuses for what they hold came from the producer like that; whatever else it refuses did not. */
function isOwnFault(thrown: unknown): boolean {
  if (!(thrown instanceof MuserError)) return true;
  return thrown.cause instanceof EngineError && thrown.code !== 'VALUE_INVALID';
}

function deadlineError(deadlineMs: number): MuserError {
  return new MuserError('DEADLINE_EXCEEDED', `The transfer took longer than ${deadlineMs} ms.`, {
    details: { deadlineMs },
  });
}
