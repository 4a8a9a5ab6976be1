import type { KvExport } from '@muser/metal';
import { rowBytesOf, type Geometry, type KvKind } from '@muser/protocol';

const BYTES_PER_VALUE = 2;
const HALF_VALUES = 2 ** 16;
/** Keeps rows of zeros from dividing by nothing. */
const LEAST_SQUARES = 1e-30;

/** What rows can be read from, in wire form (f16): an export of the engine. */
export type ReadableRows = Pick<KvExport, 'read'>;

/** How far one layer's K or V is from what it should be. */
export interface RowsDistance {
  readonly layer: number;
  readonly kind: KvKind;
  /** Norm of the difference, divided by the norm of the reference. */
  readonly distance: number;
}

/** The rows of tokens [start, end); of window layers those of [windowStart, end). */
export interface RowRange {
  readonly geometry: Geometry;
  readonly start: number;
  readonly windowStart: number;
  readonly end: number;
}

/** One layer's K or V of such rows. */
export interface RowPart {
  readonly layer: number;
  readonly kind: KvKind;
  readonly tokenStart: number;
  readonly tokenCount: number;
}

/** Every part that has rows, first layer first, K before V. */
export function partsOf({ geometry, start, windowStart, end }: RowRange): RowPart[] {
  return geometry.layers.flatMap((layerKind, layer) => {
    const tokenStart = layerKind === 'window' ? windowStart : start;
    if (tokenStart === end) return [];
    return (['k', 'v'] as const).map((kind) => ({ layer, kind, tokenStart, tokenCount: end - tokenStart }));
  });
}

/** In wire form, f16. */
export function readPart(
  rows: ReadableRows,
  { layer, kind, tokenStart, tokenCount }: RowPart,
  rowBytes: number,
): Buffer {
  const bytes = Buffer.alloc(rowBytes * tokenCount);
  rows.read(layer, kind, tokenStart, tokenCount, bytes, 0);
  return bytes;
}

/** Of every part; infinite where the reference is. */
export function distancesOf(rows: ReadableRows, reference: ReadableRows, range: RowRange): RowsDistance[] {
  const rowBytes = rowBytesOf(range.geometry);
  return partsOf(range).map((part) => ({
    layer: part.layer,
    kind: part.kind,
    distance: distance(readPart(rows, part, rowBytes), readPart(reference, part, rowBytes)),
  }));
}

function distance(rows: Buffer, reference: Buffer): number {
  const values = halfValues();
  let differences = 0;
  let squares = 0;
  for (let at = 0; at < reference.length; at += BYTES_PER_VALUE) {
    const wanted = values[reference.readUInt16LE(at)] ?? 0;
    const difference = (values[rows.readUInt16LE(at)] ?? 0) - wanted;
    differences += difference * difference;
    squares += wanted * wanted;
  }
  const result = Math.sqrt(differences / Math.max(squares, LEAST_SQUARES));
  return Number.isNaN(result) ? Infinity : result;
}

let halfTable: Float32Array | null = null;

/** The number that each pattern of 16 bits stands for. */
function halfValues(): Float32Array {
  halfTable ??= Float32Array.from({ length: HALF_VALUES }, (_, bits) => {
    const sign = bits & 0x8000 ? -1 : 1;
    const exponent = (bits >> 10) & 0x1f;
    const fraction = (bits & 0x3ff) / 1024;
    if (exponent === 0x1f) return fraction === 0 ? sign * Infinity : NaN;
    return exponent === 0 ? sign * fraction * 2 ** -14 : sign * (1 + fraction) * 2 ** (exponent - 15);
  });
  return halfTable;
}
