import { ELEMENT_BYTES, type Geometry, MuserError, rowBytesOf, type ShardPlan } from '@muser/protocol';

import type { RankLink } from '../bridge/rank-link.js';
import type { Range } from '../bridge/schema.js';

const within = (value: number, [first, end]: Range): boolean => value >= first && value < end;
const lengthOf = ([first, end]: Range): number => end - first;

/**
 * Checks that the ranks have every KV head of every layer, and leaves out those that only repeat another one's.
 * @throws MuserError MODEL_UNSUPPORTED
 */
export function distinctRanks(geometry: Geometry, ranks: readonly RankLink[]): RankLink[] {
  const distinct = ranks.filter((rank, index) => ranks.findIndex((other) => sameShare(rank, other)) === index);
  for (const layer of geometry.layers.keys()) {
    for (let head = 0; head < geometry.kvHeads; head += 1) {
      const owners = distinct.filter((rank) => within(layer, rank.layers) && within(head, rank.heads));
      if (owners.length === 1) continue;
      const message = `KV head ${head} of layer ${layer} is on ${owners.length} of vLLM's ranks, expected on one`;
      throw new MuserError('MODEL_UNSUPPORTED', message);
    }
  }
  return distinct;
}

function sameShare(a: RankLink, b: RankLink): boolean {
  return [a.layers, a.heads].join() === [b.layers, b.heads].join();
}

export interface ShardRead {
  readonly id: string;
  readonly index: number;
  readonly plan: ShardPlan;
  readonly target: Uint8Array;
  /** When it has aborted, what still comes is not written: the memory may have another use by then. */
  readonly signal: AbortSignal;
}

/** Reads a shard from the ranks that have parts of it. `target` gets the parts in the plan's order, all heads of a row together. */
export async function readShardFromRanks(
  geometry: Geometry,
  ranks: readonly RankLink[],
  { id, index, plan, target, signal }: ShardRead,
): Promise<void> {
  const { tokenStart, tokenCount } = plan;
  const rowBytes = rowBytesOf(geometry);
  const reads = ranks.map(async (rank) => {
    const own = plan.parts.flatMap(({ layer, kind }, position) =>
      within(layer, rank.layers) ? [{ layer, kind, position }] : [],
    );
    if (own.length === 0) return;
    const share = lengthOf(rank.heads) * geometry.headDimension * ELEMENT_BYTES;
    const parts = own.map(({ layer, kind }): [number, 0 | 1] => [layer, kind === 'k' ? 0 : 1]);
    await rank.read({ id, index, tokenStart, tokenCount, parts }, own.length * tokenCount * share, (payload) => {
      if (signal.aborted) return;
      const whole = share === rowBytes;
      const [length, perPart] = whole ? [tokenCount * rowBytes, 1] : [share, tokenCount];
      const headsAt = whole ? 0 : rank.heads[0] * geometry.headDimension * ELEMENT_BYTES;
      spread(payload.pieces, length, target, (run) => {
        const position = own[Math.floor(run / perPart)]?.position ?? 0;
        return (position * tokenCount + (run % perPart)) * rowBytes + headsAt;
      });
    });
  });
  // All of them, so that nothing is under way when this rejects.
  const failure = (await Promise.allSettled(reads)).find((read) => read.status === 'rejected');
  if (failure !== undefined) throw failure.reason;
}

/**
 * Copies runs of `length` bytes, which follow one another in the pieces, each to where `placeOf` says. A run is a part (a
 * rank with every head), or a row's heads.
 */
function spread(
  pieces: readonly Uint8Array[],
  length: number,
  target: Uint8Array,
  placeOf: (run: number) => number,
): void {
  let at = 0;
  for (const piece of pieces) {
    for (let from = 0; from < piece.length;) {
      const inside = at % length;
      const count = Math.min(piece.length - from, length - inside);
      target.set(piece.subarray(from, from + count), placeOf((at - inside) / length) + inside);
      from += count;
      at += count;
    }
  }
}
