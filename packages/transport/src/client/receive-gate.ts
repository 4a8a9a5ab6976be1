import { InterceptingCall, type Interceptor } from '@grpc/grpc-js';
import type { ByteBudget } from '../budget.js';

/**
 * Stands between grpc-js and its readable stream, which would buffer 16 messages of any size: a message passes only when it
 * fits into the budget of its call, and of the peer and the process above it. As long as one is held here grpc-js reads no
 * further, the HTTP/2 window closes, and the sender waits.
 */
export class ReceiveGate {
  /** What was passed to the stream and the reader has not taken yet. */
  readonly #budget: ByteBudget;
  readonly #ended = new AbortController();

  /** @param budget for this call alone; none of its messages may be larger */
  constructor(budget: ByteBudget) {
    this.#budget = budget;
  }

  readonly interceptor: Interceptor = (options, nextCall) =>
    new InterceptingCall(nextCall(options), {
      start: (metadata, _listener, next) => {
        next(metadata, {
          onReceiveMessage: (message: Buffer, passOn: (message: Buffer) => void) => {
            // What comes after the reader has left is given back by nobody, so it must not be counted.
            if (this.#ended.signal.aborted || this.#budget.tryAcquire(message.length)) passOn(message);
            else void this.#hold(message, passOn);
          },
        });
      },
    });

  /** The reader has taken a message of this size. */
  taken(bytes: number): void {
    this.#budget.release(bytes);
  }

  /** The reader takes no more. */
  dispose(): void {
    this.#ended.abort();
    this.#budget.release(this.#budget.usedBytes);
  }

  async #hold(message: Buffer, passOn: (message: Buffer) => void): Promise<void> {
    try {
      await this.#budget.acquire(message.length, this.#ended.signal);
    } catch {
      // The call has ended meanwhile.
      return;
    }
    passOn(message);
  }
}
