import type { Progress } from '@muser/protocol';

import { orAborted } from '../abort.js';

/**
 * Writes the frames of one transfer in order, one at a time, so that no more than one waits beyond what the transport
 * has room for. Of several progress reports that wait, the latest is sent.
 */
export class FrameWriter {
  readonly #send: (frame: Buffer) => Promise<void>;
  readonly #encodeProgress: (progress: Progress) => Buffer;
  readonly #signal: AbortSignal;
  #tail: Promise<void> = Promise.resolve();
  #waitingProgress: Progress | null = null;
  #lastProgressAtMs = -Infinity;

  constructor(o: {
    send: (frame: Buffer) => Promise<void>;
    encodeProgress: (progress: Progress) => Buffer;
    signal: AbortSignal;
  }) {
    this.#send = o.send;
    this.#encodeProgress = o.encodeProgress;
    this.#signal = o.signal;
  }

  /** Resolves when the transport has taken the frame. Rejects with the signal's reason, or STALLED when
   * the reader takes nothing. */
  write(frame: Buffer): Promise<void> {
    const written = this.#tail.then(() => this.#writeNow(frame));
    this.#tail = written.catch(() => {});
    return written;
  }

  /** Reports without waiting, unless the last report is younger than `leastGapMs`. */
  progress(progress: Progress, leastGapMs: number): void {
    const nowMs = performance.now();
    if (nowMs - this.#lastProgressAtMs < leastGapMs) return;
    this.#lastProgressAtMs = nowMs;
    const queued = this.#waitingProgress !== null;
    this.#waitingProgress = progress;
    if (queued) return;
    this.#tail = this.#tail
      .then(async () => {
        const latest = this.#waitingProgress;
        this.#waitingProgress = null;
        if (latest !== null) await this.#writeNow(this.#encodeProgress(latest));
      })
      // A stream that cannot be written to ends the transfer at its next frame.
      .catch(() => {});
  }

  async #writeNow(frame: Buffer): Promise<void> {
    this.#signal.throwIfAborted();
    await orAborted(this.#send(frame), this.#signal);
  }
}
