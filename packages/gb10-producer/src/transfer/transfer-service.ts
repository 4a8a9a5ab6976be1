import { randomUUID } from 'node:crypto';
import { setMaxListeners } from 'node:events';

import { MuserError, type SigningKey, TransferSender, type VerifyingKey, withoutForeignText } from '@muser/protocol';
import { LearnedRate, type Logger } from '@muser/service-kit';
import { ByteBudget, PeerBudgets, type PrefillCall } from '@muser/transport';

import { orLate } from '../abort.js';
import type { PrefillBackend } from '../backend/backend.js';
import { admit, type AdmittedRequest } from './admission.js';
import { ComputeQueue } from './compute-queue.js';
import { Transfer, type TransferOutcome } from './transfer.js';

/** Transfers that are computed and still being sent, beyond those that compute or wait. */
const MAX_SENDING = 64;
/** Prefills shorter than this are mostly overhead and say little about the rate. */
const LEAST_TOKENS_OF_A_RATE = 256;

/** No node is called so: their ids are longer. */
const SHARED_CACHE = 'shared';

export interface TransferServiceOptions {
  readonly producerId: string;
  readonly signingKey: SigningKey;
  readonly coordinatorKey: VerifyingKey;
  readonly backend: PrefillBackend;
  readonly queueLimit: number;
  readonly stagingBytes: number;
  readonly stagingBytesPerTransfer: number;
  /** Rows that were computed for one decoder are used for another one too. */
  readonly sharedPrefixCache: boolean;
  readonly logger: Logger;
}

export interface TransferLoad {
  /** Transfers that wait for the engine. */
  readonly queueLength: number;
  /** Transfers that are not settled, the waiting ones included. */
  readonly activeTransfers: number;
  /** 0 = not measured yet. */
  readonly prefillTokensPerSecond: number;
  readonly stagedBytes: number;
}

/** All transfers of a producer: which may start, in which order they compute, and how they end when the process does. */
export class TransferService {
  readonly #options: TransferServiceOptions;
  readonly #queue: ComputeQueue;
  readonly #staging: PeerBudgets;
  readonly #rate = new LearnedRate();
  /** By nonce, in hexadecimal. */
  readonly #active = new Map<string, { decoderId: string; transfer: Transfer; settled: Promise<unknown> }>();
  readonly #drain = new AbortController();
  /** What new transfers are refused with; null while they are taken. */
  #refusal: MuserError | null = null;

  constructor(options: TransferServiceOptions) {
    this.#options = options;
    this.#queue = new ComputeQueue({
      concurrency: options.backend.limits.maxConcurrent,
      queueLimit: options.queueLimit,
    });
    const { stagingBytes, stagingBytesPerTransfer } = options;
    // One decoder that reads slowly leaves half of it to the others, and has enough for a transfer in any case.
    const peerBytes = Math.max(stagingBytesPerTransfer, Math.floor(stagingBytes / 2));
    this.#staging = new PeerBudgets({ processBytes: stagingBytes, peerBytes });
    // Every watcher of the status listens.
    setMaxListeners(0, this.#drain.signal);
  }

  get load(): TransferLoad {
    return {
      queueLength: this.#queue.waiting,
      activeTransfers: this.#active.size,
      prefillTokensPerSecond: this.#rate.perSecond ?? 0,
      stagedBytes: this.#staging.usedBytes,
    };
  }

  /** Aborts when draining begins. */
  get drainBegun(): AbortSignal {
    return this.#drain.signal;
  }

  /**
   * Serves one Prefill call. A request that is refused ends with the call's status; once Begin was sent, with an Error
   * frame. Settles when everything that the transfer held is free.
   */
  async prefill(call: PrefillCall): Promise<void> {
    const receivedAtMs = performance.now();
    const logger = this.#options.logger.child({ transfer: randomUUID(), decoder: call.peer.nodeId });
    let outcome: TransferOutcome;
    try {
      outcome = await this.#accept(call, receivedAtMs);
    } catch (cause) {
      const error = withoutForeignText(cause);
      logFailure(logger, error, {}, 'transfer refused');
      throw error;
    }
    this.#report(outcome, logger);
    if (outcome.error !== null && !outcome.told) throw outcome.error;
  }

  /** Takes nothing new; what waits fails at once, what runs may finish within `limitMs` and is cancelled then. */
  async drain(limitMs: number): Promise<void> {
    const draining = new MuserError('PRODUCER_DRAINING', 'the producer is closing');
    this.#drain.abort(draining);
    const idle = this.suspend(draining);
    await orLate(idle, limitMs, () => draining).catch(() => this.cancelRunning(draining));
    await idle;
  }

  /** Takes nothing new until `readmit`; what waits fails at once. Resolves when what ran has settled. */
  async suspend(refusal: MuserError): Promise<void> {
    this.#refusal = refusal;
    const all = [...this.#active.values()];
    for (const { transfer } of all) if (transfer.state === 'queued') transfer.cancel(refusal);
    await Promise.allSettled(all.map((entry) => entry.settled));
  }

  readmit(): void {
    this.#refusal = null;
  }

  cancelRunning(error: MuserError): void {
    for (const { transfer } of this.#active.values()) transfer.cancel(error);
  }

  /** Ends every transfer of that decoder with this error. */
  cancelOf(decoderId: string, error: MuserError): void {
    for (const entry of this.#active.values()) if (entry.decoderId === decoderId) entry.transfer.cancel(error);
  }

  async #accept(call: PrefillCall, receivedAtMs: number): Promise<TransferOutcome> {
    this.#drain.signal.throwIfAborted();
    if (this.#refusal !== null) throw this.#refusal;
    const { producerId, coordinatorKey, backend } = this.#options;
    if (backend.health.state !== 'ready') throw new MuserError('UNAVAILABLE', backend.health.reason);
    const admitted = admit(call.requestBytes, call.peer.nodeId, {
      producerId,
      coordinatorKey,
      model: backend.model,
      limits: backend.limits,
    });
    const nonce = Buffer.from(admitted.request.nonce).toString('hex');
    if (this.#active.has(nonce)) throw new MuserError('NONCE_ACTIVE', 'a transfer with this nonce is running');
    this.#checkRoom();
    const transfer = this.#createTransfer(call, admitted, receivedAtMs);
    const settled = transfer.run();
    this.#active.set(nonce, { decoderId: admitted.decoderId, transfer, settled });
    const ticketEnd = setTimeout(() => transfer.cancel(ticketEnded()), admitted.ticketEndsAtMs - Date.now());
    try {
      return await settled;
    } finally {
      clearTimeout(ticketEnd);
      this.#active.delete(nonce);
    }
  }

  #checkRoom(): void {
    const limit = this.#options.backend.limits.maxConcurrent + this.#options.queueLimit + MAX_SENDING;
    if (this.#active.size < limit) return;
    throw new MuserError('QUEUE_FULL', `${this.#active.size} transfers are not finished, the limit is ${limit}`, {
      details: { transfers: this.#active.size, limit },
    });
  }

  #createTransfer(call: PrefillCall, admitted: AdmittedRequest, receivedAtMs: number): Transfer {
    const { producerId, signingKey, backend, stagingBytesPerTransfer, sharedPrefixCache } = this.#options;
    const { request, digest, wireType } = admitted;
    const { chunkTokens: largestChunk } = backend.limits;
    const sender = new TransferSender({
      nonce: request.nonce,
      requestDigest: digest,
      producerId,
      key: signingKey,
      fingerprint: backend.model.identity.fingerprint,
      producerModel: backend.model.identity.modelDigest,
      geometry: backend.model.geometry,
      wireType,
      firstToken: request.heldTokens,
      endToken: request.tokens.length - 1,
      chunkTokens: request.chunkTokens === 0 ? largestChunk : Math.min(request.chunkTokens, largestChunk),
    });
    return new Transfer({
      admitted,
      cacheScope: sharedPrefixCache ? SHARED_CACHE : admitted.decoderId,
      sender,
      send: (frame) => call.send(frame),
      readerGone: call.signal,
      backend,
      queue: this.#queue,
      staging: new ByteBudget(stagingBytesPerTransfer, this.#staging.of(admitted.decoderId)),
      onComputed: () => this.#remindOthers(),
      receivedAtMs,
    });
  }

  #remindOthers(): void {
    for (const { transfer } of this.#active.values()) transfer.remind();
  }

  #report(outcome: TransferOutcome, logger: Logger): void {
    const { state, error, prefillMs, computedTokens, queueMs, payloadBytes, shards, chunkSendMs } = outcome;
    if (prefillMs !== null && computedTokens >= LEAST_TOKENS_OF_A_RATE) this.#rate.learn(computedTokens, prefillMs);
    const facts = {
      state,
      computedTokens,
      queueMs: Math.round(queueMs),
      prefillMs: prefillMs && Math.round(prefillMs),
    };
    if (error === null) {
      const { mean, slowest } = chunkSendMs ?? { mean: 0, slowest: 0 };
      const sent = { payloadBytes, shards, chunkSendMs: round(mean), slowestChunkSendMs: round(slowest) };
      logger.info({ ...facts, ...sent }, 'transfer sealed');
    } else logFailure(logger, error, facts, `transfer ${state}`);
  }
}

/** Tickets are renewed long before, so a transfer that comes here is longer than any deadline of an ordinary one. */
function ticketEnded(): MuserError {
  return new MuserError('TICKET_EXPIRED', 'the ticket of this transfer ended while it ran');
}

/** To a tenth. */
const round = (value: number): number => Math.round(10 * value) / 10;

function logFailure(logger: Logger, error: MuserError, facts: object, message: string): void {
  const { code, cause } = error;
  if (code === 'INTERNAL') logger.error({ ...facts, code, err: cause }, message);
  else logger.warn({ ...facts, code, reason: error.message }, message);
}
