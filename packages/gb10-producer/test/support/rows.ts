import { type Geometry, type KvKind, rowBytesOf, type ShardPlan, type WireType } from '@muser/protocol';

import type { StagingBudget } from '../../src/backend/backend.js';

/** Those before it are special, such as places for images, which vLLM takes for what they are. */
const FIRST_PLAIN_TOKEN = 16;

/** Tokens that look like a prompt to nobody, but are the same for the same seed. */
export function promptTokens(length: number, vocabularySize: number, seed: number): Uint32Array {
  let state = seed >>> 0;
  return Uint32Array.from({ length }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return FIRST_PLAIN_TOKEN + ((state >>> 8) % (vocabularySize - FIRST_PLAIN_TOKEN));
  });
}

/** Every row of a prompt in wire form, and which of them are there. */
export class Rows {
  readonly wireType: WireType;
  readonly #geometry: Geometry;
  readonly #rowBytes: number;
  readonly #tables = new Map<string, Uint8Array>();
  readonly #present = new Map<string, Uint8Array>();

  constructor(geometry: Geometry, wireType: WireType, tokens: number) {
    this.wireType = wireType;
    this.#geometry = geometry;
    this.#rowBytes = rowBytesOf(geometry);
    for (const layer of geometry.layers.keys()) {
      for (const kind of ['k', 'v'] as const) {
        this.#tables.set(`${layer}${kind}`, new Uint8Array(tokens * this.#rowBytes));
        this.#present.set(`${layer}${kind}`, new Uint8Array(tokens));
      }
    }
  }

  put(layer: number, kind: KvKind, tokenStart: number, bytes: Uint8Array): void {
    const present = this.#present.get(`${layer}${kind}`);
    if (present === undefined) throw new Error(`there is no layer ${layer}`);
    const count = bytes.length / this.#rowBytes;
    if (!Number.isInteger(count)) throw new Error('a part is not a whole number of rows');
    for (let token = tokenStart; token < tokenStart + count; token += 1) {
      if (present[token] !== 0) throw new Error(`row ${token} of ${layer}${kind} came twice, or is outside`);
      present[token] = 1;
    }
    this.#tables.get(`${layer}${kind}`)?.set(bytes, tokenStart * this.#rowBytes);
  }

  /** Parts lie behind one another in the payload. */
  putShard(plan: ShardPlan, payload: Uint8Array): void {
    const partBytes = plan.tokenCount * this.#rowBytes;
    for (const [index, { layer, kind }] of plan.parts.entries()) {
      this.put(layer, kind, plan.tokenStart, payload.subarray(index * partBytes, (index + 1) * partBytes));
    }
  }

  /** Null when every row from `from` on that has to come is there, and all that are there are equal; else where not. */
  firstDifference(other: Rows, from = 0): string | null {
    for (const [name, table] of this.#tables) {
      const missing = this.#firstMissing(name, from);
      if (missing !== null) return `${name}: row ${missing} is missing`;
      const theirs = other.#tables.get(name) ?? new Uint8Array(0);
      for (const token of this.#presentFrom(name, from)) {
        const range = [token * this.#rowBytes, (token + 1) * this.#rowBytes] as const;
        if (Buffer.compare(table.subarray(...range), theirs.subarray(...range)) !== 0)
          return `${name}: row ${token} differs`;
      }
    }
    return null;
  }

  /** As firstDifference, for the global layers' rows [from, end): window rows of a prompt's beginning are not sent again. */
  firstGlobalDifference(other: Rows, end: number, from = 0): string | null {
    for (const [layer, kind] of this.#geometry.layers.entries()) {
      if (kind === 'window') continue;
      for (const name of [`${layer}k`, `${layer}v`]) {
        const [mine, theirs] = [this.#tables.get(name), other.#tables.get(name)].map((table) =>
          Buffer.from((table ?? new Uint8Array(0)).subarray(from * this.#rowBytes, end * this.#rowBytes)),
        );
        if (this.#present.get(name)?.subarray(from, end).includes(0) === true) return `${name}: a row is missing`;
        if (mine === undefined || theirs === undefined || !mine.equals(theirs)) return `${name}: differs`;
      }
    }
    return null;
  }

  /**
   * As firstDifference, but the rows of a table may be within `tolerance` of the other's, relatively, as the root of the
   * mean square: for engines that do not compute the same bits.
   */
  differenceBeyond(other: Rows, tolerance: number, from = 0): string | null {
    for (const name of this.#tables.keys()) {
      const missing = this.#firstMissing(name, from);
      if (missing !== null) return `${name}: row ${missing} is missing`;
      const tokens = this.#presentFrom(name, from);
      const mine = numbers(this.#rowsOf(name, tokens), this.wireType);
      const theirs = numbers(other.#rowsOf(name, tokens), other.wireType);
      if (mine.length !== theirs.length) return `${name}: ${mine.length} and ${theirs.length} values`;
      let squares = 0;
      let differences = 0;
      for (const [index, value] of mine.entries()) {
        squares += value * value;
        differences += (value - (theirs[index] ?? NaN)) ** 2;
      }
      const distance = Math.sqrt(differences / squares);
      if (!(distance <= tolerance)) return `${name}: differs by ${distance}`;
    }
    return null;
  }

  sameWithin(other: Rows, tolerance: number): boolean {
    return this.differenceBeyond(other, tolerance) === null;
  }

  get geometry(): Geometry {
    return this.#geometry;
  }

  /** First row from `from` on that has to come and has not: of a window layer only the last window's. */
  #firstMissing(name: string, from: number): number | null {
    const present = this.#present.get(name) ?? new Uint8Array(0);
    const isWindow = this.#geometry.layers[Number.parseInt(name, 10)] === 'window';
    const needed = isWindow ? Math.max(from, present.length - this.#geometry.windowTokens) : from;
    const missing = present.indexOf(0, needed);
    return missing < 0 ? null : missing;
  }

  #presentFrom(name: string, from: number): number[] {
    return [...(this.#present.get(name) ?? []).entries()].flatMap(([token, is]) =>
      token >= from && is === 1 ? token : [],
    );
  }

  #rowsOf(name: string, tokens: readonly number[]): Uint8Array {
    const table = this.#tables.get(name) ?? new Uint8Array(0);
    return Buffer.concat(tokens.map((token) => table.subarray(token * this.#rowBytes, (token + 1) * this.#rowBytes)));
  }
}

/** f16 or bf16, little-endian. */
function numbers(bytes: Uint8Array, type: WireType): Float64Array {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const value = type === 'f16' ? half : brainFloat;
  return Float64Array.from({ length: bytes.length / 2 }, (_, index) => value(view.getUint16(2 * index, true)));
}

function half(bits: number): number {
  const fraction = bits & 0x3ff;
  const exponent = (bits >> 10) & 0x1f;
  const size = exponent === 0 ? fraction * 2 ** -24 : (1 + fraction / 1024) * 2 ** (exponent - 15);
  return (bits & 0x8000) === 0 ? size : -size;
}

/** The upper half of a single. */
function brainFloat(bits: number): number {
  single.setUint32(0, bits << 16);
  return single.getFloat32(0);
}
const single = new DataView(new ArrayBuffer(4));

/** A staging budget that remembers its peak and tells when somebody has to wait. */
export class CountingBudget implements StagingBudget {
  readonly limitBytes: number;
  readonly #waiting: { bytes: number; grant: () => void }[] = [];
  #contended: (() => void)[] = [];
  usedBytes = 0;
  peakBytes = 0;

  constructor(limitBytes: number) {
    this.limitBytes = limitBytes;
  }

  acquire(bytes: number, signal: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      signal.throwIfAborted();
      const grant = (): void => {
        signal.removeEventListener('abort', onAbort);
        this.usedBytes += bytes;
        this.peakBytes = Math.max(this.peakBytes, this.usedBytes);
        resolve();
      };
      const waiter = { bytes, grant };
      const onAbort = (): void => {
        this.#waiting.splice(this.#waiting.indexOf(waiter), 1);
        reject(signal.reason as Error);
      };
      if (this.usedBytes + bytes <= this.limitBytes) return grant();
      signal.addEventListener('abort', onAbort, { once: true });
      this.#waiting.push(waiter);
      for (const tell of this.#contended.splice(0)) tell();
    });
  }

  release(bytes: number): void {
    this.usedBytes -= bytes;
    const [next] = this.#waiting;
    if (next === undefined || this.usedBytes + next.bytes > this.limitBytes) return;
    this.#waiting.shift();
    next.grant();
  }

  /** Resolves as soon as somebody waits. */
  contended(): Promise<void> {
    return this.#waiting.length > 0 ? Promise.resolve() : new Promise((resolve) => this.#contended.push(resolve));
  }
}
