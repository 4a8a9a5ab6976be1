import { type Geometry, windowStartOf } from '@muser/protocol';
import { Random } from '@muser/testing';
import { describe, expect, it } from 'vitest';

import { piecesOf } from '../src/backend/chunk-pieces.js';
import { PATTERN_GEOMETRY } from './support/pattern-backend.js';

const globalOnly: Geometry = { ...PATTERN_GEOMETRY, layers: ['global'], windowTokens: 0 };

describe('pieces of an announced range (window of 100)', () => {
  it('are one chunk when it is short enough and has its window rows', () => {
    const range = { start: 512, end: 1024, windowStart: 924 };
    expect(piecesOf(PATTERN_GEOMETRY, 0, range, 512)).toEqual([range]);
  });

  it('of a prefix-cache hit have window rows where they are, and none before', () => {
    expect(piecesOf(PATTERN_GEOMETRY, 10, { start: 10, end: 384, windowStart: 256 }, 128)).toEqual([
      { start: 10, end: 138, windowStart: 138 },
      { start: 138, end: 256, windowStart: 256 },
      { start: 256, end: 384, windowStart: 284 },
    ]);
  });

  it('without window layers are cut by length alone', () => {
    expect(piecesOf(globalOnly, 0, { start: 0, end: 5, windowStart: 5 }, 2)).toEqual([
      { start: 0, end: 2, windowStart: 2 },
      { start: 2, end: 4, windowStart: 4 },
      { start: 4, end: 5, windowStart: 5 },
    ]);
  });

  it.each([1, 2, 3])('cover the range, with complete window rows or none (seed %i)', (seed) => {
    const random = new Random(seed);
    for (let round = 0; round < 1_000; round += 1) {
      const first = random.integer(0, 50);
      const start = first + random.integer(0, 200);
      const end = start + random.integer(1, 700);
      const windowStart = random.integer(start, end);
      const size = random.integer(1, 300);
      let next = start;
      for (const piece of piecesOf(PATTERN_GEOMETRY, first, { start, end, windowStart }, size)) {
        expect(piece.start).toBe(next);
        expect(piece.end - piece.start).toBeLessThanOrEqual(size);
        const full = windowStartOf(PATTERN_GEOMETRY, first, piece.start, piece.end);
        expect([full, piece.end]).toContain(piece.windowStart);
        // What is sent is there, and what could be sent whole is.
        if (piece.windowStart < piece.end) expect(piece.windowStart).toBeGreaterThanOrEqual(windowStart);
        else if (full < piece.end) expect(full).toBeLessThan(windowStart);
        next = piece.end;
      }
      expect(next).toBe(end);
    }
  });
});
