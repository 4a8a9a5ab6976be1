// Frames of the bridge on our side: however a stream is cut into blocks, the same frames come out of it, or the same error
// of the schema's list; what was taken fits the schema, so that it can be encoded again.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';

import { Choices } from '@muser/testing';

import { encodeFrame, FrameDecoder } from '../src/bridge/frames.js';
import { BRIDGE_ERRORS, BRIDGE_LIMITS, type Frame, FrameError, type Link, type Side } from '../src/bridge/schema.js';

/** The first byte names link and side, the next two how the stream is cut; the rest is the stream. */
export function fuzz(input: Buffer): void {
  const choose = new Choices(input);
  const link = choose.pick<Link>(['control', 'data']);
  const side = choose.pick<Side>(['worker', 'node']);
  const [first, step] = [choose.integer(0, 15), choose.integer(1, 32)];
  const stream = choose.bytes(input.length);

  const whole = read(link, side, [stream]);
  const blocks = [stream.subarray(0, first)];
  for (let at = first; at < stream.length; at += step) blocks.push(stream.subarray(at, at + step));
  assert.deepEqual(read(link, side, blocks), whole, 'depends on how the stream is cut');
}

interface Reading {
  frames: { kind: string; header: object; payload: Buffer }[];
  error: string | null;
}

function read(link: Link, side: Side, blocks: readonly Buffer[]): Reading {
  const decoder = new FrameDecoder(link, side);
  const reading: Reading = { frames: [], error: null };
  try {
    for (const block of blocks) for (const frame of decoder.push(block)) reading.frames.push(checked(frame));
  } catch (error) {
    if (!(error instanceof FrameError) || !BRIDGE_ERRORS.includes(error.reason)) throw error;
    reading.error = error.reason;
  }
  return reading;
}

function checked({ kind, header, payload }: Frame): Reading['frames'][number] {
  const bytes = Buffer.concat(payload.pieces);
  assert.equal(bytes.length, payload.length);
  assert(bytes.length <= BRIDGE_LIMITS.payloadBytes);
  encodeFrame(kind, header, bytes);
  return { kind, header, payload: bytes };
}

/** Every frame of the golden vectors, right and wrong ones. */
export function seeds(): [string, Buffer][] {
  const vectors = JSON.parse(readFileSync(new URL('../../../proto/vectors/bridge.json', import.meta.url), 'utf8')) as {
    valid: { link: Link; from: Side; kind: string; frame: string }[];
    invalid: { link: Link; from: Side; name: string; frame: string }[];
  };
  const all = [...vectors.valid.map((v) => ({ ...v, name: v.kind })), ...vectors.invalid];
  return all.map(({ link, from, name, frame }, index) => [
    `${index}-${name.replace(/[^a-zA-Z0-9]+/g, '-').slice(0, 40)}`,
    Buffer.concat([
      Buffer.from([link === 'data' ? 1 : 0, from === 'node' ? 1 : 0, index % 16, index % 32]),
      Buffer.from(frame, 'hex'),
    ]),
  ]);
}
