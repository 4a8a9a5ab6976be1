import { connectivityState, type CallOptions, type Client, type ServiceError } from '@grpc/grpc-js';
import { MuserError } from '@muser/protocol';
import { ByteBudget } from '../budget.js';
import { CONNECT_TIMEOUT_MS, MAX_RECEIVED_BYTES_WAITING } from '../limits.js';
import { fromServiceError } from '../translation.js';
import { ReceiveGate } from './receive-gate.js';

export interface StreamRequest {
  path: string;
  request: Buffer;
  /** Any of them cancels the call. */
  signals: readonly AbortSignal[];
  /** From now to the end of the stream. */
  deadlineMs?: number;
  /** The longest wait for one message. */
  idleTimeoutMs?: number;
}

export interface StreamPeer {
  client: Client;
  target: string;
  identity: () => MuserError | 'approved' | 'unseen';
  /** What all calls to this peer share. */
  received: ByteBudget;
}

const bytes = (message: Buffer): Buffer => message;

/**
 * One server-streaming call, read message by message. Nothing is read ahead beyond MAX_RECEIVED_BYTES_WAITING; leaving the
 * loop cancels the call.
 *
 * @throws MuserError CANCELLED (the signal), DEADLINE_EXCEEDED, STALLED (no message for idleTimeoutMs), PEER_UNREACHABLE,
 *   PEER_IDENTITY, MESSAGE_TOO_LARGE, or what the server sent
 */
export async function* readStream(peer: StreamPeer, request: StreamRequest): AsyncGenerator<Buffer, void, void> {
  for (const signal of request.signals) if (signal.aborted) throw cancelled(signal);
  const call = new StreamCall(peer, request);
  try {
    for (;;) {
      const message = await call.next();
      if (message === null) return;
      yield message;
    }
  } finally {
    call.dispose();
  }
}

/** The call with everything that can end it: status, cancel, idle timer, connect timer. */
class StreamCall {
  readonly #peer: StreamPeer;
  readonly #request: StreamRequest;
  readonly #gate: ReceiveGate;
  readonly #call;
  readonly #connectTimer: NodeJS.Timeout;
  /** This side gave up (cancel, timeouts): takes effect at once. */
  #stopped: MuserError | null = null;
  /** How the stream ended, 'finished' for status OK: takes effect after the messages that came before. */
  #end: MuserError | 'finished' | null = null;
  #wake: (() => void) | null = null;
  #connected = false;

  constructor(peer: StreamPeer, request: StreamRequest) {
    this.#peer = peer;
    this.#request = request;
    this.#gate = new ReceiveGate(new ByteBudget(MAX_RECEIVED_BYTES_WAITING, peer.received));
    const options: CallOptions = { interceptors: [this.#gate.interceptor] };
    if (request.deadlineMs !== undefined) options.deadline = Date.now() + request.deadlineMs;
    this.#call = peer.client.makeServerStreamRequest(request.path, bytes, bytes, request.request, options);
    this.#call.on('metadata', () => (this.#connected = true));
    this.#call.on('readable', () => this.#wake?.());
    this.#call.on('error', (error: ServiceError) => this.#finish(this.#translate(error)));
    this.#call.on('end', () => this.#finish('finished'));
    // Not AbortSignal.any(): what it makes stays referenced by the longest-lived of its sources.
    for (const signal of request.signals) signal.addEventListener('abort', this.#onAbort, { once: true });
    this.#connectTimer = setTimeout(this.#onConnectTimeout, CONNECT_TIMEOUT_MS);
  }

  /** @returns null after a regular end */
  async next(): Promise<Buffer | null> {
    for (;;) {
      if (this.#stopped !== null) throw this.#stopped;
      const message = this.#call.read() as Buffer | null;
      if (message !== null) {
        this.#gate.taken(message.length);
        return message;
      }
      if (this.#end === 'finished') return null;
      if (this.#end !== null) throw this.#end;
      await this.#wait();
    }
  }

  dispose(): void {
    for (const signal of this.#request.signals) signal.removeEventListener('abort', this.#onAbort);
    clearTimeout(this.#connectTimer);
    this.#call.cancel();
    this.#gate.dispose();
  }

  async #wait(): Promise<void> {
    const { idleTimeoutMs } = this.#request;
    const timer =
      idleTimeoutMs === undefined
        ? undefined
        : setTimeout(() => this.#stop(stalled(this.#peer, idleTimeoutMs)), idleTimeoutMs);
    try {
      await new Promise<void>((resolve) => (this.#wake = resolve));
    } finally {
      this.#wake = null;
      clearTimeout(timer);
    }
  }

  #finish(end: MuserError | 'finished'): void {
    this.#end ??= end;
    this.#wake?.();
  }

  #stop(error: MuserError): void {
    this.#stopped ??= error;
    this.#call.cancel();
    this.#wake?.();
  }

  readonly #onAbort = (event: Event): void => this.#stop(cancelled(event.target as AbortSignal));

  readonly #onConnectTimeout = (): void => {
    if (this.#isConnected()) return;
    const message = `${this.#peer.target} did not answer within ${CONNECT_TIMEOUT_MS} ms`;
    this.#stop(new MuserError('PEER_UNREACHABLE', message, { details: { target: this.#peer.target } }));
  };

  #isConnected(): boolean {
    return this.#connected || this.#peer.client.getChannel().getConnectivityState(false) === connectivityState.READY;
  }

  #translate(error: ServiceError): MuserError {
    return fromServiceError(error, {
      target: this.#peer.target,
      connected: this.#connected,
      identity: this.#peer.identity(),
    });
  }
}

function cancelled(signal: AbortSignal): MuserError {
  return signal.reason instanceof MuserError ? signal.reason : new MuserError('CANCELLED', 'the call was cancelled');
}

function stalled(peer: StreamPeer, idleTimeoutMs: number): MuserError {
  return new MuserError('STALLED', `${peer.target} sent nothing for ${idleTimeoutMs} ms`, {
    details: { target: peer.target, idleTimeoutMs },
  });
}
