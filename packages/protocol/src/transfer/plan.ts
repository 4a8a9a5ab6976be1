import { rowBytesOf, type Geometry, type WireType } from '../geometry.js';
import { MAX_PARTS_PER_SHARD, MAX_PAYLOAD_BYTES } from '../limits.js';
import type { Part } from '../messages.js';
import { MuserError } from '../errors.js';

/** What a shard of a chunk holds: `parts.length` times `tokenCount` rows. */
export interface ShardPlan {
  readonly tokenStart: number;
  readonly tokenCount: number;
  readonly parts: Part[];
  readonly payloadBytes: number;
}

export interface ChunkRange {
  readonly geometry: Geometry;
  /** Both wire types have 2 bytes an element, so the plan is the same for both. */
  readonly wireType: WireType;
  readonly chunkStart: number;
  readonly chunkEnd: number;
  /** First window row to send; chunkEnd: the window layers are skipped. */
  readonly windowStart: number;
}

/**
 * First window row that belongs to the chunk [chunkStart, chunkEnd) of a transfer that begins at `firstToken`: the
 * rows of the chunk that the window still reaches at its end. chunkEnd when the model has no window layer.
 */
export function windowStartOf(geometry: Geometry, firstToken: number, chunkStart: number, chunkEnd: number): number {
  return Math.max(firstToken, chunkStart, chunkEnd - geometry.windowTokens);
}

/**
 * Divides a chunk into shards: the same way on every producer. Layers that have the same token range share shards; a
 * range of which one layer's K alone is more than `maxPayloadBytes` is divided into nearly equal ranges.
 * @throws MuserError RANGE_VIOLATION for an empty chunk or a window outside it, GEOMETRY_MISMATCH when one row is larger
 * than `maxPayloadBytes`
 */
export function planChunkShards(chunk: ChunkRange, maxPayloadBytes = MAX_PAYLOAD_BYTES): ShardPlan[] {
  const { geometry, chunkStart, chunkEnd, windowStart } = chunk;
  if (chunkEnd <= chunkStart || windowStart < chunkStart || windowStart > chunkEnd) {
    throw new MuserError(
      'RANGE_VIOLATION',
      `no chunk [${chunkStart}, ${chunkEnd}) with window rows from ${windowStart}`,
    );
  }
  const layersFrom = (start: number): number[] =>
    geometry.layers.flatMap((kind, layer) => ((kind === 'window' ? windowStart : chunkStart) === start ? [layer] : []));
  const limit = Math.min(maxPayloadBytes, MAX_PAYLOAD_BYTES);
  const plans = planRange(layersFrom(chunkStart), chunkStart, chunkEnd, rowBytesOf(geometry), limit);
  if (windowStart > chunkStart && windowStart < chunkEnd) {
    plans.push(...planRange(layersFrom(windowStart), windowStart, chunkEnd, rowBytesOf(geometry), limit));
  }
  return plans;
}

function planRange(layers: number[], start: number, end: number, rowBytes: number, limit: number): ShardPlan[] {
  const maxRows = Math.floor(limit / rowBytes);
  if (maxRows < 1) throw new MuserError('GEOMETRY_MISMATCH', `a row has ${rowBytes} bytes, a payload at most ${limit}`);
  const parts = layers.flatMap((layer): Part[] => [
    { layer, kind: 'k' },
    { layer, kind: 'v' },
  ]);
  const pieces = Math.ceil((end - start) / maxRows);
  const plans: ShardPlan[] = [];
  for (let piece = 0; piece < pieces; piece++) {
    const tokenStart = start + Math.floor(((end - start) * piece) / pieces);
    const tokenCount = start + Math.floor(((end - start) * (piece + 1)) / pieces) - tokenStart;
    const partBytes = tokenCount * rowBytes;
    const partsPerShard = Math.min(Math.floor(limit / partBytes), MAX_PARTS_PER_SHARD);
    for (let first = 0; first < parts.length; first += partsPerShard) {
      const own = parts.slice(first, first + partsPerShard);
      plans.push({ tokenStart, tokenCount, parts: own, payloadBytes: own.length * partBytes });
    }
  }
  return plans;
}
