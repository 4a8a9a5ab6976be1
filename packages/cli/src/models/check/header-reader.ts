import { closeSync, readSync } from 'node:fs';
import { CliError, EXIT } from '../../exit.js';
import { openRegularSync } from '../../files.js';

const WINDOW_BYTES = 256 * 1024;

export function damaged(message: string, cause?: unknown): CliError {
  return new CliError(EXIT.failed, 'MODEL_LOAD_FAILED', message, cause === undefined ? {} : { cause });
}

/**
 * Reads a file from its beginning through one window of 256 KiB: little-endian numbers, short byte strings, and skips
 * that read nothing. Never past `limit` bytes, so a damaged header cannot make it read tensors.
 */
export class HeaderReader {
  readonly size: number;
  readonly #file: number;
  readonly #window = Buffer.allocUnsafe(WINDOW_BYTES);
  #windowStart = 0;
  #windowLength = 0;
  #at = 0;

  constructor(
    private readonly path: string,
    private readonly limit: number,
  ) {
    const { file, size } = openRegularSync(path);
    this.#file = file;
    this.size = size;
  }

  close(): void {
    closeSync(this.#file);
  }

  /** Bytes from the beginning. */
  get position(): number {
    return this.#at;
  }

  uint32(what: string): number {
    return this.#take(4, what).readUInt32LE();
  }

  /** A 64-bit number that may not be above `maximum`, which has at most 53 bits. */
  uint64(what: string, maximum: number): number {
    const value = this.#take(8, what).readBigUInt64LE();
    if (value > BigInt(maximum)) throw damaged(`${this.path}: ${what} is ${value}, allowed are ${maximum}`);
    return Number(value);
  }

  /** A view of the next bytes, at most 256 KiB, which the next call overwrites. */
  bytes(count: number, what: string): Buffer {
    return this.#take(count, what);
  }

  skip(count: number, what: string): void {
    this.#claim(count, what);
  }

  #take(count: number, what: string): Buffer {
    if (count > WINDOW_BYTES) throw damaged(`${this.path}: ${what} has ${count} bytes, allowed are ${WINDOW_BYTES}`);
    const start = this.#claim(count, what);
    if (start < this.#windowStart || start + count > this.#windowStart + this.#windowLength) {
      this.#windowStart = start;
      this.#windowLength = readSync(this.#file, this.#window, 0, WINDOW_BYTES, start);
      if (this.#windowLength < count) throw this.#truncated(what);
    }
    return this.#window.subarray(start - this.#windowStart, start - this.#windowStart + count);
  }

  #claim(count: number, what: string): number {
    const start = this.#at;
    if (count > this.size - start) throw this.#truncated(what);
    if (count > this.limit - start) throw damaged(`${this.path}: the header has more than ${this.limit} bytes`);
    this.#at = start + count;
    return start;
  }

  #truncated(what: string): CliError {
    return damaged(`${this.path} is truncated: ${what} ends after its ${this.size} bytes`);
  }
}
