import { randomInt } from 'node:crypto';
import type { KvExport, Sequence } from '@muser/metal';
import { fromEngineError, MuserError, rowBytesOf, windowStartOf, type Geometry } from '@muser/protocol';
import type { Logger } from '@muser/service-kit';
import type { SequenceLease } from '../engine/sequence-lease.js';
import { engineCall, engineCallSync } from '../errors/engine-errors.js';
import { distancesOf, partsOf, readPart, type RowRange, type RowsDistance } from './kv-distance.js';

/** The last tokens of a transfer that are computed here, too. */
const SAMPLE_TOKENS = 16;
/**
 * Greatest distance of any layer's K or V. It lies between what was measured with the models of this repository for honest
 * producers and for wrong rows; docs/SECURITY.md has the figures. The limits of qualification, which knows both weight types,
 * are closer.
 */
const MAX_DISTANCE = 0.85;
/** With fewer tokens single layers are too uncertain: greatest distance of the middle one, when all are put in order. */
const MAX_MIDDLE_DISTANCE = 0.7;
const DRAWS = 2 ** 32;

export interface KvSamplesOptions {
  /** Of the transfers, 0 to 1. */
  readonly share: number;
  readonly logger: Logger;
}

export interface SampledTransfer {
  readonly lease: SequenceLease;
  readonly producerId: string;
  /** It is checked whatever is drawn. */
  readonly due: boolean;
  readonly geometry: Geometry;
  /** The whole prompt, of which the sequence holds the first rows. */
  readonly tokens: Uint32Array;
  /** First token whose rows came with this transfer, at least one of them. */
  readonly firstToken: number;
  readonly signal: AbortSignal;
}

export interface SampleCounts {
  readonly right: number;
  readonly wrong: number;
  /** Chosen, but not even the last token could be computed: another request took the place of window rows meanwhile. */
  readonly skipped: number;
}

export interface WrongRows {
  /** KV_MISMATCH */
  readonly failure: MuserError;
  /** Everybody whose rows may be the wrong ones. */
  readonly producerIds: readonly string[];
}

export interface SampleResult {
  readonly foundRight: boolean;
  readonly wrong: WrongRows | null;
}

/** What was found where a sample could be computed: the distance that decides, and what it is compared with. */
interface Finding extends RowsDistance {
  readonly sampledTokens: number;
  readonly limit: number;
  /** Rows of layer 0 are wrong: they depend on no others, so they are wrong by themselves. */
  readonly wrongByItself: boolean;
}

/**
 * Checks a sample of the transfers: computes their last tokens here and compares K and V. Which ones is drawn after the
 * transfer, so that no producer can know; the first one of each producer is always taken, and so is the next one while
 * there has been none that was right.
 */
export class KvSamples {
  /** How the last check of each producer ended; as many as are enrolled. */
  private readonly lastVerdict = new Map<string, 'right' | 'wrong'>();
  private readonly counted = { right: 0, wrong: 0, skipped: 0 };

  constructor(private readonly options: KvSamplesOptions) {}

  /** Since this process started. */
  get counts(): SampleCounts {
    return { ...this.counted };
  }

  /** Whether rows of these producers may stay for other requests. */
  mayKeep(producerIds: readonly string[]): boolean {
    return producerIds.every((producerId) => this.lastVerdict.get(producerId) !== 'wrong');
  }

  /** Whether a transfer of this producer is in the sample; each call draws. */
  isChosen(producerId: string): boolean {
    const { share } = this.options;
    return share > 0 && (this.lastVerdict.get(producerId) !== 'right' || randomInt(DRAWS) < share * DRAWS);
  }

  /**
   * Unless its rows are wrong the sequence is as it was afterwards. With wrong ones it holds at most the rows before the first
   * that may be wrong.
   * @throws MuserError CANCELLED, or what the engine failed with
   */
  async check(transfer: SampledTransfer): Promise<SampleResult> {
    const { producerId, due, signal } = transfer;
    if (!due && !this.isChosen(producerId)) return { foundRight: false, wrong: null };
    const startedAt = performance.now();
    const finding = await findingOf(transfer);
    // The engine's calls that cannot be cancelled are over within one step each.
    if (signal.aborted)
      throw new MuserError('CANCELLED', 'The request was cancelled during the check of its transfer.');
    const verdict = finding === null ? 'skipped' : finding.distance <= finding.limit ? 'right' : 'wrong';
    this.counted[verdict] += 1;
    const figures = { producerId, verdict, ...finding, checkMs: performance.now() - startedAt };
    if (finding !== null && verdict === 'wrong') {
      return { foundRight: false, wrong: await this.discard(transfer, finding, figures) };
    }
    if (verdict === 'right') this.lastVerdict.set(producerId, 'right');
    this.options.logger.info(figures, 'transfer checked');
    return { foundRight: verdict === 'right', wrong: null };
  }

  /**
   * A sample attends to every row before it, so any producer of this sequence may have made it wrong. Rows of layer 0 come
   * from the tokens alone: when these are wrong it was the last one.
   */
  private async discard({ lease, producerId }: SampledTransfer, finding: Finding, figures: object): Promise<WrongRows> {
    const { origins } = lease;
    const producerIds = finding.wrongByItself ? [producerId] : origins.producerIds;
    for (const one of producerIds) this.lastVerdict.set(one, 'wrong');
    const resumedAt = await lease.rewind(origins.firstRowOf(producerIds) ?? 0);
    this.options.logger.error(
      { ...figures, distrusted: producerIds, resumedAt },
      'a producer sent wrong rows; it is not used for a while',
    );
    return { failure: mismatch(producerIds, finding), producerIds };
  }
}

/**
 * How far the received rows are from what is computed here; null when nothing can be computed. Whether the window rows before
 * 16 tokens are there is the producer's choice (the length of its chunks, what it skips). Those before the last token always
 * come, so where more is not possible that one is computed.
 */
async function findingOf(transfer: SampledTransfer): Promise<Finding | null> {
  const end = transfer.lease.sequence.position;
  for (const most of [SAMPLE_TOKENS, 1]) {
    const start = Math.max(transfer.firstToken, end - most);
    const distances = await distancesFrom(start, end, transfer);
    if (distances !== null) return judged(distances, end - start);
  }
  return null;
}

function judged(distances: readonly RowsDistance[], sampledTokens: number): Finding {
  const isFew = sampledTokens < SAMPLE_TOKENS;
  const limit = isFew ? MAX_MIDDLE_DISTANCE : MAX_DISTANCE;
  const wrongByItself = distances.some(({ layer, distance }) => layer === 0 && distance > limit);
  const sorted = [...distances].sort((one, other) => one.distance - other.distance);
  const decisive = sorted[isFew ? Math.floor(sorted.length / 2) : sorted.length - 1];
  if (decisive === undefined) throw new MuserError('INTERNAL', 'A sample of no layers.');
  return { ...decisive, sampledTokens, limit, wrongByItself };
}

/** Null when the window rows from which the first of the tokens is computed are not there. */
async function distancesFrom(
  start: number,
  end: number,
  { lease, geometry, tokens, firstToken, signal }: SampledTransfer,
): Promise<RowsDistance[] | null> {
  const { sequence } = lease;
  const range = { geometry, start, windowStart: windowStartOf(geometry, firstToken, start, end), end };
  const received = await engineCall(() => sequence.exportRange(start, end, range));
  try {
    if (!(await canGoBack(sequence, start))) return null;
    const distances = await computedDistances(sequence, received, { range, tokens, signal });
    await putBack(sequence, received, range);
    return distances;
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

function mismatch(producerIds: readonly string[], { layer, kind, distance, limit }: Finding): MuserError {
  const who = producerIds.length === 1 ? producerIds.join() : `One of ${producerIds.join(', ')}`;
  const where = `${kind.toUpperCase()} of layer ${layer}`;
  return new MuserError(
    'KV_MISMATCH',
    `${who} sent rows that are wrong: ${where} is ${distance.toFixed(2)} from what this machine computes; ${limit} is allowed.`,
    { details: { producerIds: producerIds.join(' '), layer, kind, distance: Number(distance.toFixed(3)) } },
  );
}
