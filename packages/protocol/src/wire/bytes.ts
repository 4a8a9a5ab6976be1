import { MuserError } from '../errors.js';

export const WIRE_VARINT = 0;
export const WIRE_FIXED64 = 1;
export const WIRE_LENGTH = 2;
const WIRE_FIXED32 = 5;

const MAX_VARINT_BYTES = 10;
const TWO_32 = 2 ** 32;

export function invalid(path: string, problem: string): MuserError {
  return new MuserError('MESSAGE_INVALID', `${path}: ${problem}`, { details: { field: path } });
}

export function tooLarge(path: string, unit: string, actual: number, limit: number): MuserError {
  return new MuserError('MESSAGE_TOO_LARGE', `${path}: ${actual} ${unit}, the limit is ${limit}`, {
    details: { field: path, actual, limit },
  });
}

/** A Buffer over the same memory. */
export function asBuffer(bytes: Uint8Array): Buffer {
  return Buffer.isBuffer(bytes) ? bytes : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

/** For each part its length as u32 LE, then its bytes: no two lists of parts give the same result. */
export function lengthPrefixed(parts: readonly Uint8Array[]): Buffer {
  const result = Buffer.allocUnsafe(parts.reduce((total, part) => total + 4 + part.length, 0));
  let at = 0;
  for (const part of parts) {
    at = result.writeUInt32LE(part.length, at);
    result.set(part, at);
    at += part.length;
  }
  return result;
}

/** Bytes that `value` (a safe non-negative integer) takes as a varint. */
export function varintSize(value: number): number {
  let size = 1;
  for (let rest = value; rest >= 0x80; rest = Math.floor(rest / 0x80)) size++;
  return size;
}

/** Reads protobuf primitives out of one buffer; never allocates, never reads past the end. */
export class Reader {
  readonly #bytes: Buffer;
  readonly #end: number;
  #position: number;

  constructor(bytes: Buffer) {
    this.#bytes = bytes;
    this.#end = bytes.length;
    this.#position = 0;
  }

  get done(): boolean {
    return this.#position >= this.#end;
  }

  /** A varint as a number; above 2^53 - 1, longer than needed, or cut short is MESSAGE_INVALID. */
  varint(path: string): number {
    let value = 0;
    let scale = 1;
    for (let count = 1; count <= MAX_VARINT_BYTES; count++) {
      const byte = this.#bytes[this.#position];
      if (byte === undefined || this.#position >= this.#end) throw invalid(path, 'ends inside a varint');
      this.#position++;
      value += (byte & 0x7f) * scale;
      if (byte < 0x80) {
        if (byte === 0 && count > 1) throw invalid(path, 'varint is longer than needed');
        if (!Number.isSafeInteger(value)) throw invalid(path, 'integer is above 2^53 - 1');
        return value;
      }
      scale *= 0x80;
    }
    throw invalid(path, 'varint is longer than 10 bytes');
  }

  double(path: string): number {
    this.#need(8, path);
    const value = this.#bytes.readDoubleLE(this.#position);
    this.#position += 8;
    return value;
  }

  /** A length-delimited value as a view, not a copy. The length is compared with `limit` before anything else. */
  view(path: string, limit: number): Buffer {
    const length = this.varint(path);
    if (length > limit) throw tooLarge(path, 'bytes', length, limit);
    this.#need(length, path);
    const view = this.#bytes.subarray(this.#position, this.#position + length);
    this.#position += length;
    return view;
  }

  /** Passes over the value of a field that is not known here. Groups do not exist in proto3. */
  skip(wireType: number, path: string): void {
    switch (wireType) {
      case WIRE_VARINT:
        this.#skipVarint(path);
        return;
      case WIRE_FIXED64:
        this.#advance(8, path);
        return;
      case WIRE_LENGTH:
        this.#advance(this.varint(path), path);
        return;
      case WIRE_FIXED32:
        this.#advance(4, path);
        return;
      default:
        throw invalid(path, `unknown wire type ${wireType}`);
    }
  }

  /** An unknown field may hold a full 64-bit value (for example a negative int32), so it is not made a number. */
  #skipVarint(path: string): void {
    for (let count = 1; count <= MAX_VARINT_BYTES; count++) {
      const byte = this.#bytes[this.#position];
      if (byte === undefined) throw invalid(path, 'ends inside a varint');
      this.#position++;
      if (byte < 0x80) return;
    }
    throw invalid(path, 'varint is longer than 10 bytes');
  }

  #advance(count: number, path: string): void {
    this.#need(count, path);
    this.#position += count;
  }

  #need(count: number, path: string): void {
    const left = this.#end - this.#position;
    if (count > left) throw invalid(path, `announces ${count} bytes, ${left} are left`);
  }
}

/** Writes protobuf primitives into one buffer of exactly the size that was computed before. */
export class Writer {
  readonly bytes: Buffer;
  #position = 0;

  constructor(size: number) {
    this.bytes = Buffer.allocUnsafe(size);
  }

  varint(value: number): void {
    let rest = value;
    while (rest >= TWO_32) {
      this.bytes[this.#position++] = (rest % 0x80) | 0x80;
      rest = Math.floor(rest / 0x80);
    }
    while (rest >= 0x80) {
      this.bytes[this.#position++] = (rest & 0x7f) | 0x80;
      rest = Math.floor(rest / 0x80);
    }
    this.bytes[this.#position++] = rest;
  }

  double(value: number): void {
    this.#position = this.bytes.writeDoubleLE(value, this.#position);
  }

  uint32LE(value: number): void {
    this.#position = this.bytes.writeUInt32LE(value, this.#position);
  }

  raw(value: Uint8Array): void {
    this.bytes.set(value, this.#position);
    this.#position += value.length;
  }

  text(value: string): void {
    this.#position += this.bytes.write(value, this.#position, 'utf8');
  }

  /** The finished message. Sizes and writes come from the same schema, so a difference is a fault in this package. */
  finish(): Buffer {
    if (this.#position !== this.bytes.length) {
      throw new MuserError('INTERNAL', `encoded ${this.#position} bytes, computed ${this.bytes.length}`);
    }
    return this.bytes;
  }
}
