import type { Chooser } from './mutations.js';

/**
 * Choices read from the bytes of an input, so that a fuzzer that changes bytes changes what a program of calls does. When
 * the bytes have run out every choice is the first one.
 */
export class Choices implements Chooser {
  readonly #bytes: Uint8Array;
  #at = 0;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
  }

  get done(): boolean {
    return this.#at >= this.#bytes.length;
  }

  /** An integer in [from, to]; takes as few bytes as the range needs. */
  integer(from: number, to: number): number {
    const span = to - from + 1;
    let value = 0;
    for (let limit = 1; limit < span; limit *= 256) value = value * 256 + this.#byte();
    return from + (value % span);
  }

  pick<T>(items: readonly T[]): T {
    const item = items[this.integer(0, items.length - 1)];
    if (item === undefined) throw new RangeError('nothing to pick from');
    return item;
  }

  /** The next bytes, `count` at most; fewer when they run out. */
  bytes(count: number): Buffer {
    const taken = Buffer.from(this.#bytes.subarray(this.#at, this.#at + count));
    this.#at += taken.length;
    return taken;
  }

  #byte(): number {
    const byte = this.#bytes[this.#at] ?? 0;
    this.#at += 1;
    return byte;
  }
}
