import { callNative, EngineError } from './errors.js';
import type { KvKind, NativeKvExport, NativeKvStage, WireType } from './native.js';

/** KV rows taken out of a sequence, held natively until `dispose`. */
export class KvExport {
  readonly sizeBytes: number;
  readonly #native: NativeKvExport;

  constructor(native: NativeKvExport) {
    this.#native = native;
    this.sizeBytes = callNative('KvExport.sizeBytes', () => native.sizeBytes());
  }

  /**
   * Writes rows [tokenStart, tokenStart + tokenCount) of one layer's K or V into `target` at `targetOffset`, in wire form:
   * token-major, f16 little-endian, K in half-split order. Returns the bytes written. RANGE when the rows are not held.
   */
  read(
    layer: number,
    kind: KvKind,
    tokenStart: number,
    tokenCount: number,
    target: Uint8Array,
    targetOffset: number,
  ): number {
    return callNative('KvExport.read', () =>
      this.#native.read(layer, kind, tokenStart, tokenCount, target, targetOffset),
    );
  }

  dispose(): void {
    callNative('KvExport.dispose', () => {
      this.#native.dispose();
    });
  }
}

const nativeOf = new WeakMap<KvStage, NativeKvStage>();

/** For this package only: the addon's object behind a stage. */
export function nativeStageOf(stage: KvStage): NativeKvStage {
  const native = nativeOf.get(stage);
  if (native === undefined) throw new EngineError('INVALID_ARGUMENT', 'not a stage of this package');
  return native;
}

/** One chunk's rows on their way into a sequence, held natively until installed or disposed. */
export class KvStage {
  readonly sizeBytes: number;
  readonly #native: NativeKvStage;

  constructor(native: NativeKvStage) {
    this.#native = native;
    nativeOf.set(this, native);
    this.sizeBytes = callNative('KvStage.sizeBytes', () => native.sizeBytes());
  }

  /** Takes rows in wire form. VALUE_INVALID on NaN or infinity, RANGE on rows outside the chunk or given twice. */
  put(
    layer: number,
    kind: KvKind,
    tokenStart: number,
    tokenCount: number,
    wireType: WireType,
    bytes: Uint8Array,
  ): void {
    callNative('KvStage.put', () => {
      this.#native.put(layer, kind, tokenStart, tokenCount, wireType, bytes);
    });
  }

  /** Every row of the chunk is there. */
  get complete(): boolean {
    return callNative('KvStage.complete', () => this.#native.complete());
  }

  dispose(): void {
    callNative('KvStage.dispose', () => {
      this.#native.dispose();
    });
  }
}
