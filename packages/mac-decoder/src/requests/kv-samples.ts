import { randomInt } from 'node:crypto';
import type { KvExport, Sequence } from '@muser/metal';
import { fromEngineError, MuserError, rowBytesOf, windowStartOf, type Geometry } from '@muser/protocol';
import type { Logger } from '@muser/service-kit';
import type { SequenceLease } from '../engine/decoder-engine.js';
import { engineCall, engineCallSync } from '../errors/engine-errors.js';
import { distancesOf, partsOf, readPart, type RowRange, type RowsDistance } from './kv-distance.js';

/** The last tokens of a transfer that are computed here, too. */
const SAMPLE_TOKENS = 16;
/**
 * Greatest distance of any layer's K or V. Measured with the models of this repository over twelve prompts: 0.021 for equal
 * weights, 0.22 for a 16-bit producer with a Q4_K_M decoder, 0.73 for the worst pair that anybody may use (IQ2_XS); rows of
 * zeros are at 1, of another prompt at 1.4, with swapped heads at 1.5 and more. The limits of qualification, which knows both
 * weight types, are closer.
 */
const MAX_DISTANCE = 0.85;
const DRAWS = 2 ** 32;

export interface KvSamplesOptions {
  /** Of the transfers that complete, 0 to 1. */
  readonly share: number;
  readonly logger: Logger;
}

export interface SampledTransfer {
  readonly lease: SequenceLease;
  readonly producerId: string;
  readonly geometry: Geometry;
  /** The whole prompt; the sequence holds all rows but the last one's. */
  readonly tokens: Uint32Array;
  /** First token whose rows came with this transfer. */
  readonly firstToken: number;
  readonly signal: AbortSignal;
}

export interface SampleCounts {
  readonly right: number;
  readonly wrong: number;
  /** Chosen, but the window rows from which the tokens could be computed were not there. */
  readonly skipped: number;
}

/**
 * Checks a sample of the transfers that completed: computes their last tokens here and compares K and V. Which ones is
 * drawn after the transfer, so that no producer can know; the first one of each producer is always taken, and so is
 * the next one while there has been none that was right.
 */
export class KvSamples {
  /** Of producers whose last check was right; as many as are enrolled. */
  private readonly checkedOnce = new Set<string>();
  private readonly counted = { right: 0, wrong: 0, skipped: 0 };

  constructor(private readonly options: KvSamplesOptions) {}

  /** Since this process started. */
  get counts(): SampleCounts {
    return { ...this.counted };
  }

  /**
   * After a check that was right, or skipped, the sequence is as it was. After a wrong one it is empty.
   * @returns KV_MISMATCH for wrong rows, else null
   * @throws MuserError CANCELLED, or what the engine failed with
   */
  async check(transfer: SampledTransfer): Promise<MuserError | null> {
    const { producerId, lease, signal } = transfer;
    if (!this.isChosen(producerId)) return null;
    const startedAt = performance.now();
    const farthest = await farthestRows(transfer);
    // The engine's calls that cannot be cancelled are over within one step each.
    if (signal.aborted)
      throw new MuserError('CANCELLED', 'The request was cancelled during the check of its transfer.');
    const verdict = farthest === null ? 'skipped' : farthest.distance <= MAX_DISTANCE ? 'right' : 'wrong';
    this.counted[verdict] += 1;
    const figures = { producerId, verdict, ...farthest, checkMs: performance.now() - startedAt };
    if (verdict === 'right') this.checkedOnce.add(producerId);
    if (verdict !== 'wrong' || farthest === null) {
      this.options.logger.info(figures, 'transfer checked');
      return null;
    }
    this.checkedOnce.delete(producerId);
    this.options.logger.error(
      { ...figures, limit: MAX_DISTANCE },
      'a producer sent wrong rows; it is not used for a while',
    );
    await lease.replace();
    return mismatch(producerId, farthest);
  }

  private isChosen(producerId: string): boolean {
    const { share } = this.options;
    return share > 0 && (!this.checkedOnce.has(producerId) || randomInt(DRAWS) < share * DRAWS);
  }
}

/** The part of the received rows that is farthest from what is computed here; null when nothing can be computed. */
async function farthestRows({
  lease,
  geometry,
  tokens,
  firstToken,
  signal,
}: SampledTransfer): Promise<RowsDistance | null> {
  const { sequence } = lease;
  const end = tokens.length - 1;
  const start = Math.max(firstToken, end - SAMPLE_TOKENS);
  const range = { geometry, start, windowStart: windowStartOf(geometry, firstToken, start, end), end };
  const received = await engineCall(() => sequence.exportRange(start, end, range));
  try {
    if (!(await canGoBack(sequence, start))) return null;
    const distances = await computedDistances(sequence, received, { range, tokens, signal });
    const farthest = distances.reduce((worst, one) => (one.distance <= worst.distance ? worst : one));
    await putBack(sequence, received, range);
    return farthest;
  } finally {
    received.dispose();
  }
}

async function computedDistances(
  sequence: Sequence,
  received: KvExport,
  { range, tokens, signal }: { range: RowRange; tokens: Uint32Array; signal: AbortSignal },
): Promise<RowsDistance[]> {
  const { start, end } = range;
  await engineCall(() => sequence.evaluate(tokens.subarray(start, end), { signal }));
  const computed = await engineCall(() => sequence.exportRange(start, end, range));
  try {
    return engineCallSync(() => distancesOf(received, computed, range));
  } finally {
    computed.dispose();
  }
}

/**
 * An answer must not depend on whether its transfer was checked. Where the engine cannot go back a second time (another
 * sequence took window rows meanwhile) the rows that were computed here stay: they are right, too.
 */
async function putBack(sequence: Sequence, received: KvExport, range: RowRange): Promise<void> {
  if (!(await canGoBack(sequence, range.start))) return;
  const stage = engineCallSync(() => sequence.stage(range.start, range.end, range.windowStart));
  try {
    const rowBytes = rowBytesOf(range.geometry);
    for (const part of partsOf(range)) {
      const { layer, kind, tokenStart, tokenCount } = part;
      engineCallSync(() => stage.put(layer, kind, tokenStart, tokenCount, 'f16', readPart(received, part, rowBytes)));
    }
    await engineCall(() => sequence.install(stage));
  } finally {
    stage.dispose();
  }
}

/** Goes back to `position`, if the window rows from which the next token is computed are there. */
async function canGoBack(sequence: Sequence, position: number): Promise<boolean> {
  try {
    await sequence.truncate(position);
    return true;
  } catch (error) {
    const failure = fromEngineError(error);
    if (failure.code === 'SEQUENCE_STATE') return false;
    throw failure;
  }
}

function mismatch(producerId: string, { layer, kind, distance }: RowsDistance): MuserError {
  const where = `${kind.toUpperCase()} of layer ${layer}`;
  return new MuserError(
    'KV_MISMATCH',
    `${producerId} sent rows that are wrong: ${where} is ${distance.toFixed(2)} from what this machine computes; ${MAX_DISTANCE} is allowed.`,
    { details: { producerId, layer, kind, distance: Number(distance.toFixed(3)) } },
  );
}
