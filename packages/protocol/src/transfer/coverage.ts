import { MuserError } from '../errors.js';
import { rowBytesOf, type Geometry } from '../geometry.js';
import type { ShardHeader } from '../messages.js';
import { windowStartOf } from './plan.js';

export interface CompleteChunk {
  readonly start: number;
  readonly end: number;
  /** First window row that came with the chunk; equal to `end` when the window layers were skipped. */
  readonly windowStart: number;
  /** Whether decoding could go on from `end`: every global row before it and a full window are there. */
  readonly resumePoint: boolean;
}

export interface TransferTotals {
  readonly shards: number;
  readonly payloadBytes: number;
  readonly chunks: number;
  readonly endToken: number;
}

export interface TransferRange {
  readonly geometry: Geometry;
  readonly firstToken: number;
  readonly endToken: number;
  /** Upper bound of a chunk's tokens. */
  readonly chunkTokens: number;
}

interface OpenChunk {
  readonly start: number;
  readonly end: number;
  readonly windowStart: number;
  /** Next row of every layer's K (2 x layer) and V (2 x layer + 1). */
  readonly nextRow: Uint32Array;
  /** How many of `nextRow` have not reached the end. */
  unfinished: number;
}

/**
 * Counts the rows of a transfer, on both ends: chunks follow one another without a gap, every row of a chunk comes
 * exactly once, the rows of one layer's K (or V) in ascending order.
 */
export class Coverage {
  readonly #range: TransferRange;
  readonly #rowBytes: number;
  #chunk: OpenChunk | null = null;
  #position: number;
  #shards = 0;
  #chunks = 0;
  #payloadBytes = 0;
  /**
   * End of the last chunk whose window rows were skipped; before any, where the decoder's own window begins. A chunk that
   * is longer than the window leaves out rows too, but only such as no later token reaches.
   */
  #windowFrom: number;

  constructor(range: TransferRange) {
    this.#range = range;
    this.#rowBytes = rowBytesOf(range.geometry);
    this.#position = range.firstToken;
    this.#windowFrom = Math.max(0, range.firstToken - range.geometry.windowTokens);
  }

  get shards(): number {
    return this.#shards;
  }

  get totals(): TransferTotals {
    return {
      shards: this.#shards,
      payloadBytes: this.#payloadBytes,
      chunks: this.#chunks,
      endToken: this.#position,
    };
  }

  /** Whether every chunk up to the end of the transfer is complete. */
  get complete(): boolean {
    return this.#chunk === null && this.#position === this.#range.endToken;
  }

  /**
   * Counts a shard; the chunk when this was its last one.
   * @throws MuserError ORDER_VIOLATION, DUPLICATE_SHARD, RANGE_VIOLATION
   */
  add(header: ShardHeader): CompleteChunk | null {
    this.#checkSequence(header);
    const chunk = this.#chunk ?? this.#open(header);
    this.#checkChunk(header, chunk);
    this.#checkPayloadBytes(header);
    for (const { layer, kind } of header.parts) this.#addPart(header, chunk, layer, kind === 'k' ? 0 : 1);
    this.#shards++;
    this.#payloadBytes += header.payloadBytes;
    this.#chunk = chunk;
    return chunk.unfinished === 0 ? this.#close(chunk) : null;
  }

  #checkSequence({ sequence, chunkIndex }: ShardHeader): void {
    const details = { sequence, expected: this.#shards, chunkIndex };
    if (sequence < this.#shards || chunkIndex < this.#chunks) {
      throw new MuserError('DUPLICATE_SHARD', `shard ${sequence} of chunk ${chunkIndex} came already`, { details });
    }
    if (sequence > this.#shards || chunkIndex > this.#chunks) {
      throw new MuserError(
        'ORDER_VIOLATION',
        `shard ${sequence} of chunk ${chunkIndex} came, shard ${this.#shards} of chunk ${this.#chunks} is next`,
        { details },
      );
    }
  }

  #open({ chunkStart, chunkEnd, windowStart }: ShardHeader): OpenChunk {
    const { geometry, firstToken, endToken, chunkTokens } = this.#range;
    if (chunkStart !== this.#position || chunkEnd <= chunkStart || chunkEnd > endToken) {
      throw outside(`chunk [${chunkStart}, ${chunkEnd}) does not continue ${this.#position} within ${endToken}`);
    }
    if (chunkEnd - chunkStart > chunkTokens) {
      throw outside(`chunk [${chunkStart}, ${chunkEnd}) is longer than ${chunkTokens} tokens`);
    }
    const full = windowStartOf(geometry, firstToken, chunkStart, chunkEnd);
    const maySkip = chunkEnd <= endToken - geometry.windowTokens;
    if (windowStart !== full && !(maySkip && windowStart === chunkEnd)) {
      throw outside(`chunk [${chunkStart}, ${chunkEnd}) has window rows from ${windowStart}, expected ${full}`);
    }
    const nextRow = new Uint32Array(geometry.layers.length * 2);
    geometry.layers.forEach((kind, layer) => {
      nextRow.fill(kind === 'window' ? windowStart : chunkStart, layer * 2, layer * 2 + 2);
    });
    const unfinished = nextRow.reduce((count, row) => (row < chunkEnd ? count + 1 : count), 0);
    return { start: chunkStart, end: chunkEnd, windowStart, nextRow, unfinished };
  }

  #checkChunk(header: ShardHeader, chunk: OpenChunk): void {
    const { chunkStart, chunkEnd, windowStart, tokenStart, tokenCount } = header;
    if (chunkStart !== chunk.start || chunkEnd !== chunk.end || windowStart !== chunk.windowStart) {
      throw outside(`the chunk [${chunk.start}, ${chunk.end}) changed to [${chunkStart}, ${chunkEnd}) half-way`);
    }
    if (tokenStart < chunk.start || tokenStart + tokenCount > chunk.end) {
      throw outside(`${tokenCount} rows from ${tokenStart} are not in the chunk [${chunk.start}, ${chunk.end})`);
    }
  }

  #checkPayloadBytes({ tokenCount, parts, payloadBytes }: ShardHeader): void {
    const expected = tokenCount * parts.length * this.#rowBytes;
    if (payloadBytes !== expected) {
      throw outside(
        `${parts.length} parts of ${tokenCount} rows are ${expected} bytes, the header says ${payloadBytes}`,
      );
    }
  }

  #addPart({ tokenStart, tokenCount }: ShardHeader, chunk: OpenChunk, layer: number, kind: 0 | 1): void {
    const slot = layer * 2 + kind;
    const next = chunk.nextRow[slot];
    if (next === undefined) throw outside(`layer ${layer} of ${this.#range.geometry.layers.length}`);
    if (tokenStart !== next) {
      const windowed = this.#range.geometry.layers[layer] === 'window';
      if (windowed && tokenStart < chunk.windowStart) {
        throw outside(`window layer ${layer} has rows from ${tokenStart}, expected from ${chunk.windowStart}`);
      }
      throw tokenStart < next
        ? new MuserError('DUPLICATE_SHARD', `row ${tokenStart} of layer ${layer} came already`)
        : new MuserError('ORDER_VIOLATION', `layer ${layer} goes on at row ${tokenStart}, row ${next} is next`);
    }
    chunk.nextRow[slot] = tokenStart + tokenCount;
    if (tokenStart + tokenCount === chunk.end) chunk.unfinished--;
  }

  #close({ start, end, windowStart }: OpenChunk): CompleteChunk {
    const { windowTokens } = this.#range.geometry;
    this.#chunk = null;
    this.#chunks++;
    this.#position = end;
    if (windowStart === end) this.#windowFrom = end;
    return { start, end, windowStart, resumePoint: this.#windowFrom <= Math.max(0, end - windowTokens) };
  }
}

function outside(problem: string): MuserError {
  return new MuserError('RANGE_VIOLATION', problem);
}
