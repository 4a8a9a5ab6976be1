import { describe, expect, it } from 'vitest';

import { BEHIND_CHUNKS, windowRowsFrom } from '../src/backend/window-rows.js';
import { PATTERN_GEOMETRY } from './support/pattern-backend.js';

const WINDOW = PATTERN_GEOMETRY.windowTokens;
const ROWS = 1000;
const task = { tokens: new Uint32Array(ROWS + 1), heldTokens: 0 };

describe('window rows of a chunk', () => {
  it.each([
    [0, 500 - WINDOW],
    [BEHIND_CHUNKS - 1, 500 - WINDOW],
    [BEHIND_CHUNKS, 500],
    [BEHIND_CHUNKS + 1, 500],
  ])('with %i chunks that wait to be sent begin at %i', (unsent, windowStart) => {
    expect(windowRowsFrom(PATTERN_GEOMETRY, task, { start: 300, end: 500 }, unsent)).toBe(windowStart);
  });

  it.each([
    [ROWS - WINDOW, ROWS - WINDOW],
    [ROWS - WINDOW + 1, ROWS - 2 * WINDOW + 1],
    [ROWS, ROWS - WINDOW],
  ])('that ends at %i, however many wait, begin at %i', (end, windowStart) => {
    expect(windowRowsFrom(PATTERN_GEOMETRY, task, { start: 300, end }, 99)).toBe(windowStart);
  });

  it('are those after the rows that are held', () => {
    expect(windowRowsFrom(PATTERN_GEOMETRY, { ...task, heldTokens: 450 }, { start: 450, end: 500 }, 0)).toBe(450);
  });
});
