import {
  ELEMENT_BYTES,
  type Geometry,
  type KvKind,
  MAX_PAYLOAD_BYTES,
  MuserError,
  planChunkShards,
  rowBytesOf,
  type WireType,
} from '@muser/protocol';
import { ByteBudget } from '@muser/transport';

import type { PrefillBackend, PrefillChunk } from '../backend/backend.js';
import { withinLimit } from '../deadline.js';

const STAGING_BYTES = 256 << 20;
/** A prompt of a few windows, on the slowest machine that is meant. */
const PREFILL_LIMIT_MS = 1_200_000;

/** Rows [start, end). */
export interface RowSpan {
  readonly start: number;
  readonly end: number;
}

/** The rows of one prompt in wire form: all of them for global layers, those of the last window for window layers. */
export class PromptRows {
  readonly geometry: Geometry;
  readonly wireType: WireType;
  /** Of the prompt; its last token has none. */
  readonly count: number;
  readonly #tables: ReadonlyMap<string, Uint8Array>;
  /** Of each table's rows, 1 for those that came. */
  readonly #present: ReadonlyMap<string, Uint8Array>;

  constructor(geometry: Geometry, wireType: WireType, count: number) {
    this.geometry = geometry;
    this.wireType = wireType;
    this.count = count;
    const names = geometry.layers.flatMap((_, layer) => [
      { layer, kind: 'k' as const },
      { layer, kind: 'v' as const },
    ]);
    const size = (layer: number): number => this.count - this.spanOf(layer).start;
    this.#tables = new Map(
      names.map(({ layer, kind }) => [`${layer}${kind}`, new Uint8Array(size(layer) * rowBytesOf(geometry))]),
    );
    this.#present = new Map(names.map(({ layer, kind }) => [`${layer}${kind}`, new Uint8Array(size(layer))]));
  }

  /** The rows of a layer that are kept. */
  spanOf(layer: number): RowSpan {
    const { layers, windowTokens } = this.geometry;
    return { start: layers[layer] === 'window' ? Math.max(0, this.count - windowTokens) : 0, end: this.count };
  }

  /**
   * Takes rows from `tokenStart` on, in wire form; those that are not kept are left out.
   * @throws MuserError RANGE_VIOLATION when one of them is there already
   */
  put(layer: number, kind: KvKind, tokenStart: number, bytes: Uint8Array): void {
    const rowBytes = rowBytesOf(this.geometry);
    const { start, end } = this.spanOf(layer);
    const from = Math.max(start, tokenStart);
    const to = Math.min(end, tokenStart + bytes.length / rowBytes);
    if (to <= from) return;
    const name = `${layer}${kind}`;
    const present = this.#present.get(name)?.subarray(from - start, to - start);
    if (present?.includes(1) === true) {
      throw new MuserError('RANGE_VIOLATION', `rows of layer and kind ${name} in ${from} to ${to - 1} came twice`);
    }
    present?.fill(1);
    const part = bytes.subarray((from - tokenStart) * rowBytes, (to - tokenStart) * rowBytes);
    this.#tables.get(name)?.set(part, (from - start) * rowBytes);
  }

  /** @throws MuserError RANGE_VIOLATION when rows did not come */
  requireComplete(): void {
    for (const [name, present] of this.#present) {
      const missing = present.indexOf(0);
      if (missing < 0) continue;
      const row = this.count - present.length + missing;
      throw new MuserError('RANGE_VIOLATION', `row ${row} of layer and kind ${name} is missing`);
    }
  }

  /** Rows of one layer's K or V in wire form. */
  bytes(layer: number, kind: KvKind, { start, end }: RowSpan): Uint8Array {
    const rowBytes = rowBytesOf(this.geometry);
    const first = this.spanOf(layer).start;
    const table = this.#tables.get(`${layer}${kind}`) ?? new Uint8Array(0);
    return table.subarray((start - first) * rowBytes, (end - first) * rowBytes);
  }

  /** The same as numbers: (end - start) x kvHeads x headDimension. @throws MuserError ENGINE_FAILED when one is not finite */
  values(layer: number, kind: KvKind, span: RowSpan): Float32Array {
    const bytes = this.bytes(layer, kind, span);
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    const table = valuesOf(this.wireType);
    const values = new Float32Array(bytes.length / ELEMENT_BYTES);
    for (let index = 0; index < values.length; index += 1) {
      values[index] = table[view.getUint16(index * ELEMENT_BYTES, true)] ?? NaN;
    }
    if (!values.every(Number.isFinite)) {
      throw new MuserError('ENGINE_FAILED', `layer ${layer} has values in ${kind.toUpperCase()} that are not finite`);
    }
    return values;
  }
}

const tables = new Map<WireType, Float32Array>();

/** The number that each pattern of 16 bits stands for. */
function valuesOf(type: WireType): Float32Array {
  let table = tables.get(type);
  if (table === undefined) {
    table = Float32Array.from({ length: 1 << 16 }, (_, bits) => (type === 'f16' ? half(bits) : upperHalf(bits)));
    tables.set(type, table);
  }
  return table;
}

function half(bits: number): number {
  const fraction = bits & 0x3ff;
  const exponent = (bits >> 10) & 0x1f;
  const sign = (bits & 0x8000) === 0 ? 1 : -1;
  if (exponent === 0x1f) return fraction === 0 ? sign * Infinity : NaN;
  return sign * (exponent === 0 ? fraction * 2 ** -24 : (1 + fraction / 1024) * 2 ** (exponent - 15));
}

/** bf16 is the upper half of a single. */
function upperHalf(bits: number): number {
  single.setUint32(0, bits << 16);
  return single.getFloat32(0);
}
const single = new DataView(new ArrayBuffer(4));

export interface Prefilled {
  readonly rows: PromptRows;
  /** null when the engine had rows of an earlier prompt. */
  readonly tokensPerSecond: number | null;
  readonly reusedTokens: number;
}

export interface PrefillOptions {
  /** Rows are reused only between prompts of one scope. */
  readonly cacheScope: string;
  readonly signal: AbortSignal;
  /** Default: 20 minutes. */
  readonly limitMs?: number;
}

/** Prefills a prompt and reads every row that a hand-off of it would carry. @throws MuserError of the engine, or CANCELLED */
export async function prefillRows(
  backend: PrefillBackend,
  tokens: Uint32Array,
  options: PrefillOptions,
): Promise<Prefilled> {
  const [wireType = 'f16'] = backend.limits.wireTypes;
  const rows = new PromptRows(backend.model.geometry, wireType, tokens.length - 1);
  const what = `the prefill of ${tokens.length} tokens in ${backend.name}`;
  const { cacheScope, limitMs = PREFILL_LIMIT_MS } = options;
  const run = await withinLimit({ signal: options.signal, limitMs, what }, async (signal) => {
    const staging = new ByteBudget(STAGING_BYTES);
    const task = { tokens, heldTokens: 0, chunkTokens: 0, wireType, cacheScope, staging, signal };
    const started = backend.prefill(task);
    for await (const chunk of started) await readAndRelease(chunk, rows);
    return started;
  });
  rows.requireComplete();
  const { startedAtMs, endedAtMs, reusedTokens } = run.timings;
  const ms = startedAtMs === null || endedAtMs === null ? 0 : endedAtMs - startedAtMs;
  return { rows, reusedTokens, tokensPerSecond: reusedTokens > 0 || ms <= 0 ? null : (rows.count / ms) * 1000 };
}

async function readAndRelease(chunk: PrefillChunk, rows: PromptRows): Promise<void> {
  try {
    await readChunk(chunk, rows);
  } finally {
    chunk.release();
  }
}

async function readChunk(chunk: PrefillChunk, rows: PromptRows): Promise<void> {
  const { geometry, wireType } = rows;
  const { start: chunkStart, end: chunkEnd, windowStart } = chunk;
  const partBytes = (tokens: number): number => tokens * rowBytesOf(geometry);
  for (const plan of planChunkShards({ geometry, wireType, chunkStart, chunkEnd, windowStart }, MAX_PAYLOAD_BYTES)) {
    const payload = new Uint8Array(plan.payloadBytes);
    await chunk.readShard(plan, payload);
    for (const [index, { layer, kind }] of plan.parts.entries()) {
      const size = partBytes(plan.tokenCount);
      rows.put(layer, kind, plan.tokenStart, payload.subarray(index * size, (index + 1) * size));
    }
  }
}
