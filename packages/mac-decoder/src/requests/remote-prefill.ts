import type { Geometry, ModelIdentity } from '@muser/protocol';
import type { PeerBudgets } from '@muser/transport';
import type { SequenceLease } from '../engine/sequence-lease.js';
import { transferPrefill, type TransferObserver, type TransferResult } from '../ingest/transfer.js';
import type { Pace } from '../placement/pace.js';
import type { AttemptSample, MeasuredRates } from '../placement/rates.js';
import type { ProducerConnections } from '../producers/connections.js';
import type { Producer } from '../producers/directory.js';
import type { KvSamples } from './kv-samples.js';
import { PaceTimer } from './pace-timer.js';
import type { ProgressMeter } from './progress.js';
import type { Timeline } from './timeline.js';

export interface RemotePrefillOptions {
  readonly lease: SequenceLease;
  readonly producer: Producer;
  readonly connections: Pick<ProducerConnections, 'prefill'>;
  readonly staged: PeerBudgets;
  readonly model: ModelIdentity;
  readonly geometry: Geometry;
  readonly tokens: Uint32Array;
  readonly chunkTokens: number;
  readonly deadlineMs: number;
  readonly stallTimeoutMs: number;
  readonly signal: AbortSignal;
  /** How long the producer may take; null where the request waits for it whatever it takes. */
  readonly pace: Pace | null;
  /** Payload bytes of the request's attempts before this one. */
  readonly bytesBefore: number;
  readonly timeline: Timeline;
  readonly meter: ProgressMeter;
  readonly rates: MeasuredRates;
  readonly samples: KvSamples;
  /** Told of the producers whose rows were found wrong, or may have been: nobody is to use them, nor what is kept of them. */
  readonly distrust: (producerIds: readonly string[]) => void;
}

/**
 * One attempt: lets a producer prefill what the sequence lacks of a prompt, and learns from how it went: its circuits, its
 * rates, the request's timeline.
 */
export async function remotePrefill(options: RemotePrefillOptions): Promise<TransferResult> {
  const { producer, connections, timeline, lease, pace } = options;
  const startedAt = timeline.now();
  const heldTokens = lease.sequence.position;
  const timer = pace === null ? null : new PaceTimer(pace, timeline.now, heldTokens);
  producer.circuit.begin();
  if (pace !== null) producer.pace.begin();
  options.rates.of(producer.entry.nodeId).begin();
  try {
    const transferred = await transferPrefill({
      ...options,
      producer: producer.entry,
      staged: options.staged.of(producer.entry.nodeId),
      frames: (requestBytes, limits) => connections.prefill(producer.entry, requestBytes, limits),
      now: timeline.now,
      observer: observerOf(options, timer),
      ...(timer === null ? {} : { leave: timer.signal }),
    });
    const { result, foundRight } = await checked(transferred, options, heldTokens);
    settleCircuits(producer, result, foundRight, pace !== null);
    options.rates.of(producer.entry.nodeId).learn(sampleOf(options, result, { startedAt, heldTokens }));
    return result;
  } catch (error) {
    // The request was cancelled, or the engine cannot go on.
    producer.circuit.undecided();
    if (pace !== null) producer.pace.undecided();
    throw error;
  } finally {
    timer?.stop();
  }
}

/**
 * The rows that an attempt left may be a sample, also where it failed: they are used. Not where it was left for being slow,
 * because then an end has been promised. Wrong ones are a failure of their own, and are not used.
 */
async function checked(
  result: TransferResult,
  { lease, producer, geometry, tokens, signal, samples, distrust }: RemotePrefillOptions,
  firstToken: number,
): Promise<{ result: TransferResult; foundRight: boolean }> {
  const isUsed = result.position > firstToken && !result.failedHere && result.failure?.code !== 'PRODUCER_SLOW';
  if (!isUsed) return { result, foundRight: false };
  const { nodeId } = producer.entry;
  const due = producer.circuit.isDistrusted;
  const rows = { lease, producerId: nodeId, due, geometry, tokens, firstToken, signal };
  const { foundRight, wrong } = await samples.check(rows);
  if (wrong === null) return { result, foundRight };
  distrust(wrong.producerIds);
  return { result: { ...result, failure: wrong.failure, position: lease.sequence.position }, foundRight };
}

/**
 * Being slow says nothing about a producer's health, and only requests that are in a hurry are kept away for it. A failure
 * says nothing about its pace.
 */
function settleCircuits(
  { circuit, pace }: Producer,
  { failure, failedHere }: TransferResult,
  foundRight: boolean,
  paced: boolean,
): void {
  if (failure === null) circuit.succeeded(foundRight);
  else if (failedHere) circuit.undecided();
  else circuit.failed(failure.code);
  if (!paced) return;
  if (failure === null) pace.succeeded();
  else if (failure.code === 'PRODUCER_SLOW') pace.trip();
  else pace.undecided();
}

function observerOf(options: RemotePrefillOptions, timer: PaceTimer | null): TransferObserver {
  const { timeline, meter, tokens, bytesBefore, lease } = options;
  const total = tokens.length - 1;
  let installed = lease.sequence.position;
  return {
    accepted: (at) => timeline.mark('accepted', at),
    progress: ({ queuePosition, tokensPrefilled }) => {
      if (queuePosition > 0) meter.report('remote', 'queued', queuePosition, 0);
      else meter.report('remote', 'prefill', tokensPrefilled, total);
    },
    received: (at, figures) => {
      timeline.markFirst('firstByte', at);
      timeline.mark('lastByte', at);
      meter.setBytes(bytesBefore + figures.payloadBytes);
      meter.report('remote', 'transfer', installed, total);
    },
    sealed: (at, { beginAt, prefill }) => {
      timeline.mark('sealed', at);
      if (beginAt === null || prefill === null) return;
      timeline.mark('prefillStart', beginAt + prefill.startMs);
      timeline.mark('prefillEnd', beginAt + prefill.endMs);
    },
    installed: (at, position, lastResumePoint) => {
      installed = position;
      timer?.reached(lastResumePoint);
      timeline.mark('installed', at);
      meter.report('remote', 'transfer', installed, total);
    },
  };
}

function sampleOf(
  { timeline, tokens, chunkTokens }: RemotePrefillOptions,
  { figures, failure }: TransferResult,
  { startedAt, heldTokens }: { startedAt: number; heldTokens: number },
): AttemptSample {
  const { beginAt, prefill, lastChunk, linkSample: link } = figures;
  const tooSlow = failure?.code === 'PRODUCER_SLOW';
  if (beginAt === null) {
    // One that has not begun when it is left would have taken longer still.
    return { handshakeMs: tooSlow ? timeline.now() - startedAt : null, link, prefill: null, tooSlow };
  }
  const sample = { handshakeMs: beginAt - startedAt, link, tooSlow };
  if (prefill !== null) {
    const { startMs, endMs, reusedTokens } = prefill;
    return { ...sample, prefill: { tokens: tokens.length - 1 - reusedTokens, milliseconds: endMs - startMs } };
  }
  const received = (lastChunk?.end ?? heldTokens) - heldTokens;
  if (tooSlow) {
    // The next chunk would have taken longer still.
    const next = Math.min(chunkTokens, tokens.length - heldTokens - received);
    return { ...sample, prefill: { tokens: received + next, milliseconds: timeline.now() - beginAt } };
  }
  // Whether it computed the rows that were held here is not known: only a whole prompt tells.
  if (lastChunk === null || heldTokens > 0) return { ...sample, prefill: null };
  return { ...sample, prefill: { tokens: received, milliseconds: lastChunk.at - beginAt } };
}
