import type { Random } from '../random.js';

/** Where a choice comes from: a seeded generator, or the bytes of a fuzzed input (`Choices`). */
export type Chooser = Pick<Random, 'integer' | 'pick'>;

/** Tags and lengths stand at the beginning of a message; most changes go there. */
const HEAD_BYTES = 160;
const MAX_CHANGES = 4;
const MAX_STRETCH_BYTES = 40;
const EDGES = [0, 1, 7, 8, 0x7f, 0x80, 0xff, 0xffff, 1 << 16, 1 << 20, 1 << 22, 2 ** 31 - 1, 2 ** 31, 2 ** 32 - 1];

/**
 * What a hostile network or a broken peer makes of a message: bytes changed, left out, put in or repeated, numbers at the
 * edges of their types, pieces of other messages.
 *
 * @param others messages to take pieces from; the message itself when there are none
 */
export function mutated(choose: Chooser, message: Uint8Array, others: readonly Uint8Array[] = []): Buffer {
  let result: Buffer = Buffer.from(message);
  for (let left = choose.integer(1, MAX_CHANGES); left > 0; left -= 1) {
    const donor = others.length === 0 ? message : choose.pick(others);
    result = choose.pick(CHANGES)(choose, result, donor);
  }
  return result;
}

type Change = (choose: Chooser, message: Buffer, donor: Uint8Array) => Buffer;

const CHANGES: readonly Change[] = [
  (choose, message) => overwritten(message, position(choose, message), (byte) => byte ^ (1 << choose.integer(0, 7))),
  (choose, message) => overwritten(message, position(choose, message), () => choose.integer(0, 255)),
  (choose, message) => {
    const bytes = Buffer.alloc(4);
    const value = choose.pick(EDGES);
    if (choose.integer(0, 1) === 0) bytes.writeUInt32LE(value);
    else bytes.writeUInt32BE(value);
    const at = position(choose, message);
    return Buffer.concat([message.subarray(0, at), bytes, message.subarray(at + bytes.length)]);
  },
  (choose, message) => message.subarray(0, position(choose, message)),
  (choose, message) => {
    const noise = Buffer.from(Array.from({ length: choose.integer(1, 12) }, () => choose.integer(0, 255)));
    return inserted(choose, message, noise);
  },
  (choose, message) => {
    const at = position(choose, message);
    return Buffer.concat([message.subarray(0, at), message.subarray(at + choose.integer(1, MAX_STRETCH_BYTES))]);
  },
  (choose, message, donor) => inserted(choose, message, piece(choose, donor)),
  (choose, message, donor) => {
    const at = position(choose, message);
    const taken = piece(choose, donor);
    return Buffer.concat([message.subarray(0, at), taken, message.subarray(at + taken.length)]);
  },
];

function position(choose: Chooser, message: Uint8Array): number {
  const size = choose.integer(0, 2) === 0 ? message.length : Math.min(message.length, HEAD_BYTES);
  return choose.integer(0, Math.max(0, size - 1));
}

function overwritten(message: Buffer, at: number, change: (byte: number) => number): Buffer {
  const result = Buffer.from(message);
  if (at < result.length) result[at] = change(result[at] ?? 0) & 0xff;
  return result;
}

function inserted(choose: Chooser, message: Buffer, bytes: Uint8Array): Buffer {
  const at = position(choose, message);
  return Buffer.concat([message.subarray(0, at), bytes, message.subarray(at)]);
}

function piece(choose: Chooser, donor: Uint8Array): Uint8Array {
  const at = position(choose, donor);
  return donor.subarray(at, at + choose.integer(1, MAX_STRETCH_BYTES));
}
