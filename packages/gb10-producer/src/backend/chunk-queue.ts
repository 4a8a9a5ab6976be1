import type { PrefillChunk } from './backend.js';

/**
 * Hands chunks from the compute loop to the one reader. It has no limit of its own: the staging budget bounds what
 * waits here. Whoever stops first, compute by an error or the reader by leaving, everything still waiting is released.
 */
export class ChunkQueue implements AsyncIterable<PrefillChunk> {
  readonly #waiting: PrefillChunk[] = [];
  readonly #onReaderLeft: () => void;
  #end: { error: unknown } | 'done' | null = null;
  #wake: (() => void) | null = null;

  /** @param onReaderLeft called once, when the reader has got everything or leaves earlier */
  constructor(onReaderLeft: () => void) {
    this.#onReaderLeft = onReaderLeft;
  }

  push(chunk: PrefillChunk): void {
    if (this.#end !== null) {
      chunk.release();
      return;
    }
    this.#waiting.push(chunk);
    this.#wake?.();
  }

  /** No more chunks. What waits can still be read. */
  finish(): void {
    this.#end ??= 'done';
    this.#wake?.();
  }

  /** Drops what waits; the reader gets the error. */
  fail(error: unknown): void {
    // Also after the end of compute, unless the reader has got everything: without the error it would seem to have.
    if (this.#end === null || (this.#end === 'done' && this.#waiting.length > 0)) this.#end = { error };
    this.#releaseWaiting();
    this.#wake?.();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<PrefillChunk, void, undefined> {
    try {
      for (;;) {
        const chunk = this.#waiting.shift();
        if (chunk !== undefined) {
          yield chunk;
          continue;
        }
        if (this.#end === 'done') return;
        if (this.#end !== null) throw this.#end.error;
        await new Promise<void>((resolve) => (this.#wake = resolve));
        this.#wake = null;
      }
    } finally {
      this.#end ??= 'done';
      this.#releaseWaiting();
      this.#onReaderLeft();
    }
  }

  #releaseWaiting(): void {
    for (const chunk of this.#waiting.splice(0)) chunk.release();
  }
}
