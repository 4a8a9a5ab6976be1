import type { KvExport } from '@muser/metal';
import { MuserError, type ShardPlan } from '@muser/protocol';

import type { PrefillChunk } from './backend.js';
import type { RowRange } from './chunk-pieces.js';

/** Rows that were taken out of a sequence. */
export class LlamaChunk implements PrefillChunk {
  readonly start: number;
  readonly end: number;
  readonly windowStart: number;
  readonly computedAtMs = performance.now();
  readonly #rows: KvExport;
  #onRelease: (() => void) | null;

  constructor(rows: KvExport, range: RowRange, onRelease: () => void) {
    this.start = range.start;
    this.end = range.end;
    this.windowStart = range.windowStart;
    this.#rows = rows;
    this.#onRelease = onRelease;
  }

  // Copying is all that is to be done, so the promise is settled when it is returned.
  readShard(plan: ShardPlan, target: Uint8Array): Promise<void> {
    return new Promise((resolve) => {
      let offset = 0;
      for (const { layer, kind } of plan.parts) {
        offset += this.#rows.read(layer, kind, plan.tokenStart, plan.tokenCount, target, offset);
      }
      if (offset !== plan.payloadBytes) {
        throw new MuserError('INTERNAL', `a shard of ${plan.payloadBytes} bytes was read as ${offset} bytes`);
      }
      resolve();
    });
  }

  release(): void {
    const onRelease = this.#onRelease;
    if (onRelease === null) return;
    this.#onRelease = null;
    this.#rows.dispose();
    onRelease();
  }
}
