import { readFileSync } from 'node:fs';

import { Random } from '@muser/testing';
import { describe, expect, it } from 'vitest';

import { encodeFrame, FrameDecoder } from '../src/bridge/frames.js';
import {
  BRIDGE_ERRORS,
  BRIDGE_LIMITS,
  FrameError,
  type FrameKind,
  type Link,
  type Side,
} from '../src/bridge/schema.js';

interface ValidVector {
  link: Link;
  from: Side;
  kind: FrameKind;
  header: object;
  payload: string;
  frame: string;
}
interface InvalidVector {
  name: string;
  link: Link;
  from: Side;
  frame: string;
  code: string;
}
const vectors = JSON.parse(readFileSync(new URL('../../../proto/vectors/bridge.json', import.meta.url), 'utf8')) as {
  valid: ValidVector[];
  invalid: InvalidVector[];
};

const bytes = (hex: string): Buffer => Buffer.from(hex, 'hex');

describe('frames, as both languages have them', () => {
  it.each(vectors.valid)(
    '$kind on the $link link is written and read',
    ({ link, from, kind, header, payload, frame }) => {
      expect(encodeFrame(kind, header, bytes(payload)).toString('hex')).toBe(frame);
      const [read, ...more] = new FrameDecoder(link, from).push(bytes(frame));
      expect(more).toEqual([]);
      expect(read).toMatchObject({ kind, header });
      expect(Buffer.concat(read?.payload.pieces ?? []).toString('hex')).toBe(payload);
    },
  );

  it.each(vectors.invalid)('$name: $code', ({ link, from, frame, code }) => {
    expect(() => [...new FrameDecoder(link, from).push(bytes(frame))]).toThrow(
      expect.objectContaining({ reason: code }) as Error,
    );
    expect(BRIDGE_ERRORS).toContain(code);
  });

  it('are not written with a wrong field, and the error does not quote it', () => {
    const write = (): Buffer =>
      encodeFrame('prefill', { id: 'secret prompt', heldTokens: 0, cacheScope: '' }, Buffer.alloc(4));
    expect(write).toThrow(FrameError);
    expect(write).not.toThrow(/secret/);
    expect(() => encodeFrame('rows', { read: 1 }, Buffer.alloc(BRIDGE_LIMITS.payloadBytes + 1))).toThrow(
      /PAYLOAD_INVALID/,
    );
  });
});

describe('a stream of frames', () => {
  const control = vectors.valid.filter(({ link, from }) => link === 'control' && from === 'worker');
  const stream = Buffer.concat(control.map(({ frame }) => bytes(frame)));

  it.each([1, 2, 3, 5, 64, 1000, 1 << 20])('is the same in blocks of %i bytes', (size) => {
    const decoder = new FrameDecoder('control', 'worker');
    const kinds: string[] = [];
    for (let at = 0; at < stream.length; at += size) {
      for (const { kind } of decoder.push(stream.subarray(at, at + size))) kinds.push(kind);
    }
    expect(kinds).toEqual(control.map(({ kind }) => kind));
    expect(decoder.empty).toBe(true);
  });

  it('keeps nothing but what came: an announced length allocates nothing', () => {
    const before = process.memoryUsage().arrayBuffers;
    const decoders = Array.from({ length: 100 }, () => {
      const decoder = new FrameDecoder('data', 'worker');
      const start = Buffer.alloc(4);
      start.writeUInt32LE(BRIDGE_LIMITS.frameBytes);
      expect([...decoder.push(start)]).toEqual([]);
      return decoder;
    });
    expect(process.memoryUsage().arrayBuffers - before).toBeLessThan(BRIDGE_LIMITS.frameBytes);
    expect(decoders.every((decoder) => !decoder.empty)).toBe(true);
  });

  it('takes the largest payload, and not a byte more', () => {
    const frame = encodeFrame('rows', { read: 1 }, Buffer.alloc(BRIDGE_LIMITS.payloadBytes, 7));
    const decoder = new FrameDecoder('data', 'worker');
    const frames = [...decoder.push(frame.subarray(0, 100)), ...decoder.push(frame.subarray(100))];
    expect(frames[0]?.payload).toHaveLength(BRIDGE_LIMITS.payloadBytes);
    const joined = Buffer.concat(frames[0]?.payload.pieces ?? []);
    expect(joined.equals(Buffer.alloc(BRIDGE_LIMITS.payloadBytes, 7))).toBe(true);
  });
});

describe('10,000 damaged frames', () => {
  it.each([1, 2, 3, 4])('end with a code or are valid (seed %i)', (seed) => {
    const random = new Random(seed);
    const below = (limit: number): number => random.integer(0, limit - 1);
    for (let round = 0; round < 2_500; round += 1) {
      const { link, from, frame } = vectors.valid[below(vectors.valid.length)] as ValidVector;
      let damaged = bytes(frame);
      if (random.next() < 0.2) damaged = Buffer.from(Array.from({ length: below(200) }, () => below(256)));
      for (let change = below(5); change > 0 && damaged.length > 0; change -= 1) {
        damaged[below(damaged.length)] = below(256);
      }
      if (random.next() < 0.3) damaged = damaged.subarray(0, below(damaged.length + 1));
      const decoder = new FrameDecoder(link, from);
      try {
        for (const { kind, header, payload } of decoder.push(damaged)) {
          encodeFrame(kind, header, Buffer.concat(payload.pieces));
        }
      } catch (error) {
        expect(error, `seed ${seed}, round ${round}`).toBeInstanceOf(FrameError);
      }
    }
  });
});
