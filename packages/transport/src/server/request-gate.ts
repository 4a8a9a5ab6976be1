import { ServerInterceptingCall, type ServerInterceptingCallInterface, type ServerInterceptor } from '@grpc/grpc-js';
import { MAX_MESSAGE_BYTES, MuserError } from '@muser/protocol';
import type { ByteBudget } from '../budget.js';
import { MAX_PEER_REQUEST_BYTES, MAX_PROCESS_REQUEST_BYTES, REQUEST_TIMEOUT_MS } from '../limits.js';
import { PeerBudgets } from '../peer-budgets.js';
import { toStatus } from '../translation.js';
import type { ConnectionTable, RunningCall } from './connections.js';

/**
 * Stands before the handlers of a server: counts the calls of each peer, and reads a request only when there is room for it.
 * grpc-js itself collects the pieces of as many requests as there are streams, for as long as the peer likes.
 */
export function requestGate(connections: ConnectionTable): ServerInterceptor {
  const budgets = new PeerBudgets({ processBytes: MAX_PROCESS_REQUEST_BYTES, peerBytes: MAX_PEER_REQUEST_BYTES });
  return (_method, call) => {
    let request: IncomingRequest | null = null;
    return new ServerInterceptingCall(call, {
      start: (next) =>
        next({
          onReceiveMetadata: (metadata, pass) => {
            try {
              const running = connections.beginCall(call.getPeer());
              request = new IncomingRequest(call, running, budgets.of(running.nodeId));
              request.read(() => pass(metadata));
            } catch (error) {
              call.sendStatus(toStatus(error));
            }
          },
          onReceiveHalfClose: (pass) => {
            request?.complete();
            pass();
          },
          // grpc-js calls this at every end of a call, the regular one too.
          onCancel: () => request?.dispose(),
        }),
    });
  };
}

/** From the head of a call to its last byte from the client. */
class IncomingRequest {
  readonly #running: RunningCall;
  readonly #budget: ByteBudget;
  readonly #stop = new AbortController();
  readonly #timer: NodeJS.Timeout;
  #reserved = false;
  #done = false;

  constructor(call: ServerInterceptingCallInterface, running: RunningCall, budget: ByteBudget) {
    this.#running = running;
    this.#budget = budget;
    this.#timer = setTimeout(() => {
      const message = `the request was not there within ${REQUEST_TIMEOUT_MS} ms`;
      call.sendStatus(toStatus(new MuserError('STALLED', message)));
    }, REQUEST_TIMEOUT_MS);
  }

  /** The handler begins to read when `start` is called. Until then what comes stays in the window of the stream. */
  read(start: () => void): void {
    if (this.#budget.tryAcquire(MAX_MESSAGE_BYTES)) this.#begin(start);
    else void this.#wait(start);
  }

  async #wait(start: () => void): Promise<void> {
    try {
      await this.#budget.acquire(MAX_MESSAGE_BYTES, this.#stop.signal);
    } catch {
      // The call has ended meanwhile.
      return;
    }
    this.#begin(start);
  }

  #begin(start: () => void): void {
    this.#reserved = true;
    if (this.#done) this.#release();
    else start();
  }

  /** What the request holds is the handler's business from now on. */
  complete(): void {
    this.#done = true;
    clearTimeout(this.#timer);
    this.#stop.abort();
    this.#release();
  }

  /** The call has ended. */
  dispose(): void {
    this.complete();
    this.#running.end();
  }

  #release(): void {
    if (!this.#reserved) return;
    this.#reserved = false;
    this.#budget.release(MAX_MESSAGE_BYTES);
  }
}
