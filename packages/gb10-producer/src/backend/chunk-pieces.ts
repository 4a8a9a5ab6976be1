import { type Geometry, windowStartOf } from '@muser/protocol';

/** A range of computed tokens; window rows are there from `windowStart` on. */
export interface RowRange {
  readonly start: number;
  readonly end: number;
  readonly windowStart: number;
}

/**
 * Divides an announced range into chunks of at most `chunkTokens`. Each has all the window rows that belong to it, or none:
 * a range that vLLM's prefix cache had is long and has window rows only for its end, so it is cut where they begin.
 */
export function piecesOf(geometry: Geometry, firstToken: number, range: RowRange, chunkTokens: number): RowRange[] {
  const { start, end, windowStart } = range;
  const full = windowStartOf(geometry, firstToken, start, end);
  if (windowStart <= full && end - start <= chunkTokens) return [{ start, end, windowStart: full }];
  const cuts = windowStart > start && windowStart < end ? [start, windowStart, end] : [start, end];
  return cuts
    .slice(1)
    .flatMap((cut, index) => evenly(cuts[index] ?? start, cut, chunkTokens))
    .map((piece) => {
      const full = windowStartOf(geometry, firstToken, piece.start, piece.end);
      return { ...piece, windowStart: windowStart <= full ? full : piece.end };
    });
}

function evenly(start: number, end: number, size: number): { start: number; end: number }[] {
  const count = Math.ceil((end - start) / size);
  return Array.from({ length: count }, (_, index) => ({
    start: start + index * size,
    end: Math.min(start + (index + 1) * size, end),
  }));
}
