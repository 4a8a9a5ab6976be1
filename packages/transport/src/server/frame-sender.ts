import { once } from 'node:events';
import type { ServerWritableStream } from '@grpc/grpc-js';
import { MAX_MESSAGE_BYTES, MuserError } from '@muser/protocol';
import type { ByteBudget } from '../budget.js';
import { SEND_STALL_TIMEOUT_MS } from '../limits.js';

/** The sending half of one call: bounded by bytes, honours the stream's drain and the call's end. */
export class FrameSender {
  readonly #call: ServerWritableStream<Buffer, Buffer>;
  readonly #budget: ByteBudget;
  readonly #signal: AbortSignal;
  #disposed = false;

  /** @param budget for this call alone */
  constructor(call: ServerWritableStream<Buffer, Buffer>, budget: ByteBudget, signal: AbortSignal) {
    this.#call = call;
    this.#budget = budget;
    this.#signal = signal;
  }

  /** Handed to the stream and not yet taken by the socket. */
  get bytesInFlight(): number {
    return this.#budget.usedBytes;
  }

  /**
   * Resolves when the frame is on its way and another one may follow. The buffer is copied by then or later: leave it alone.
   *
   * @throws MuserError the reason of the call's end, STALLED when the reader takes nothing, MESSAGE_TOO_LARGE
   */
  async send(frame: Buffer): Promise<void> {
    if (frame.length > MAX_MESSAGE_BYTES) {
      throw new MuserError('MESSAGE_TOO_LARGE', `a frame of ${frame.length} bytes; the limit is ${MAX_MESSAGE_BYTES}`);
    }
    this.#signal.throwIfAborted();
    if (!this.#budget.tryAcquire(frame.length)) {
      await this.#unlessStalled((signal) => this.#budget.acquire(frame.length, signal));
    }
    const more = this.#call.write(frame, () => this.#release(frame.length));
    if (!more) await this.#unlessStalled((signal) => once(this.#call, 'drain', { signal }));
  }

  /** Gives back what the stream will never report: it drops the callbacks of a call that has ended. */
  dispose(): void {
    this.#disposed = true;
    this.#budget.release(this.#budget.usedBytes);
  }

  #release(bytes: number): void {
    if (!this.#disposed) this.#budget.release(bytes);
  }

  async #unlessStalled(wait: (signal: AbortSignal) => Promise<unknown>): Promise<void> {
    const stop = new AbortController();
    const onAbort = () => stop.abort(this.#signal.reason);
    if (this.#signal.aborted) onAbort();
    const timer = setTimeout(() => {
      stop.abort(new MuserError('STALLED', `the reader took nothing for ${SEND_STALL_TIMEOUT_MS} ms`));
    }, SEND_STALL_TIMEOUT_MS);
    this.#signal.addEventListener('abort', onAbort, { once: true });
    try {
      await wait(stop.signal);
    } catch (error) {
      // events.once() wraps the reason in an AbortError.
      throw stop.signal.aborted ? stop.signal.reason : error;
    } finally {
      clearTimeout(timer);
      this.#signal.removeEventListener('abort', onAbort);
    }
  }
}
