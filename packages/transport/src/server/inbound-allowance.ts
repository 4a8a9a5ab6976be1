import { MAX_PEER_BURST_BYTES, MAX_PEER_BYTES_PER_SECOND } from '../limits.js';

/** What a peer may still send: MAX_PEER_BURST_BYTES at once, and it grows back with MAX_PEER_BYTES_PER_SECOND. */
export class InboundAllowance {
  #bytes = MAX_PEER_BURST_BYTES;
  #countedAt: number;

  /** @param now by a clock that only goes forward, in ms, as everywhere here */
  constructor(now: number) {
    this.#countedAt = now;
  }

  /** Counts what has come since the last time. @returns false when that was more than may come */
  take(bytes: number, now: number): boolean {
    const grown = ((now - this.#countedAt) / 1000) * MAX_PEER_BYTES_PER_SECOND;
    this.#countedAt = now;
    this.#bytes = Math.min(MAX_PEER_BURST_BYTES, this.#bytes + grown) - bytes;
    if (this.#bytes >= 0) return true;
    // What came before the connection was dropped is not held against the next one for longer than it has to be.
    this.#bytes = 0;
    return false;
  }
}
