import type { Geometry, ModelIdentity } from '@muser/protocol';
import type { SequenceLease } from '../engine/decoder-engine.js';
import { transferPrefill, type TransferObserver, type TransferResult } from '../ingest/transfer.js';
import type { MeasuredRates } from '../placement/rates.js';
import type { ProducerConnections } from '../producers/connections.js';
import type { Producer } from '../producers/directory.js';
import type { ProgressMeter } from './progress.js';
import type { Timeline } from './timeline.js';

export interface RemotePrefillOptions {
  readonly lease: SequenceLease;
  readonly producer: Producer;
  readonly connections: Pick<ProducerConnections, 'prefill'>;
  readonly model: ModelIdentity;
  readonly geometry: Geometry;
  readonly tokens: Uint32Array;
  readonly chunkTokens: number;
  readonly deadlineMs: number;
  readonly stallTimeoutMs: number;
  readonly signal: AbortSignal;
  readonly timeline: Timeline;
  readonly meter: ProgressMeter;
  readonly rates: MeasuredRates;
}

/** Lets a producer prefill a prompt, and learns from how it went: its circuit, its rates, the request's timeline. */
export async function remotePrefill(options: RemotePrefillOptions): Promise<TransferResult> {
  const { producer, connections, timeline } = options;
  const startedAt = timeline.now();
  producer.circuit.begin();
  try {
    const result = await transferPrefill({
      ...options,
      producer: producer.entry,
      frames: (requestBytes, limits) => connections.prefill(producer.entry, requestBytes, limits),
      now: timeline.now,
      observer: observerOf(options),
    });
    if (result.failure === null) producer.circuit.succeeded();
    else if (result.failedHere) producer.circuit.undecided();
    else producer.circuit.failed(result.failure.code);
    learn(options, result, startedAt);
    return result;
  } catch (error) {
    // The request was cancelled, or the engine cannot go on.
    producer.circuit.undecided();
    throw error;
  }
}

function observerOf({ timeline, meter, tokens }: RemotePrefillOptions): TransferObserver {
  const total = tokens.length - 1;
  let installed = 0;
  return {
    accepted: (at) => timeline.mark('accepted', at),
    progress: ({ queuePosition, tokensPrefilled }) => {
      if (queuePosition > 0) meter.report('remote', 'queued', queuePosition, 0);
      else meter.report('remote', 'prefill', tokensPrefilled, total);
    },
    received: (at, figures) => {
      timeline.markFirst('firstByte', at);
      timeline.mark('lastByte', at);
      meter.setBytes(figures.payloadBytes);
      meter.report('remote', 'transfer', installed, total);
    },
    sealed: (at, { beginAt, prefill }) => {
      timeline.mark('sealed', at);
      if (beginAt === null || prefill === null) return;
      timeline.mark('prefillStart', beginAt + prefill.startMs);
      timeline.mark('prefillEnd', beginAt + prefill.endMs);
    },
    installed: (at, position) => {
      installed = position;
      timeline.mark('installed', at);
      meter.report('remote', 'transfer', installed, total);
    },
  };
}

function learn({ producer, rates, tokens }: RemotePrefillOptions, result: TransferResult, startedAt: number): void {
  const learned = rates.of(producer.entry.nodeId);
  const { figures } = result;
  learned.link.learn(figures.linkSample.bytes, figures.linkSample.milliseconds);
  if (figures.beginAt !== null) learned.handshakes.learn(1, figures.beginAt - startedAt);
  if (figures.prefill === null) return;
  const { startMs, endMs, reusedTokens } = figures.prefill;
  learned.prefill.learn(tokens.length - 1 - reusedTokens, endMs - startMs);
}
