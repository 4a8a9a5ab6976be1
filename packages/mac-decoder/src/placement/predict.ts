import { chunkBytesOf, type Geometry, type ProducerEntry } from '@muser/protocol';
import type { MeasuredRates } from './rates.js';

// What is assumed of a producer that was never used: fast enough to be tried, so that its real rates are learned.
const ASSUMED_SPEEDUP = 4;
const ASSUMED_LINK_BYTES_PER_SECOND = 125_000_000;
const ASSUMED_HANDSHAKE_MS = 20;

/** A prompt of which the first `heldTokens` rows lie in this decoder's cache. */
export interface RemoteWork {
  readonly geometry: Geometry;
  readonly promptTokens: number;
  readonly heldTokens: number;
  /** Rows of the prompt that the producer need not compute. */
  readonly reusedTokens?: number;
  readonly chunkTokens: number;
}

/** Milliseconds from the call on. */
export interface RemotePrediction {
  /** Until the first token of the answer. */
  readonly endMs: number;
  /** Until more rows than now are installed, so that something is gained. */
  readonly firstGainMs: number;
}

/** Bytes of a hand-off of `tokens` rows in chunks of `chunkTokens`, about; window rows as a producer sends them. */
export function handoffBytes(geometry: Geometry, tokens: number, chunkTokens: number): number {
  return (chunkBytesOf(geometry, chunkTokens) * tokens) / chunkTokens;
}

/**
 * What a remote prefill by `producer` takes. `believed`: by what was measured; `hoped`: by what the producer says of itself
 * or what is assumed of one that was never used, where that is better.
 */
export function predictRemote(
  rates: MeasuredRates,
  producer: ProducerEntry,
  work: RemoteWork,
  trust: 'believed' | 'hoped' = 'believed',
): RemotePrediction {
  const { prefillTokensPerSecond, linkBytesPerSecond, handshakeMs } = rates.of(producer.nodeId);
  const assumed: Speed = {
    tokensPerSecond: producer.prefillTokensPerSecond || localTokensPerSecond(rates, work) * ASSUMED_SPEEDUP,
    bytesPerSecond: ASSUMED_LINK_BYTES_PER_SECOND,
    handshakeMs: ASSUMED_HANDSHAKE_MS,
  };
  const measured: Speed = {
    tokensPerSecond: prefillTokensPerSecond ?? assumed.tokensPerSecond,
    bytesPerSecond: linkBytesPerSecond ?? assumed.bytesPerSecond,
    handshakeMs: handshakeMs ?? assumed.handshakeMs,
  };
  const believed = predictAt(measured, producer.queueLength, work);
  if (trust === 'believed') return believed;
  const hoped = predictAt(assumed, producer.queueLength, work);
  return hoped.endMs < believed.endMs ? hoped : believed;
}

interface Speed {
  readonly tokensPerSecond: number;
  readonly bytesPerSecond: number;
  readonly handshakeMs: number;
}

/** The link works while the producer computes; only the last chunk is left then. */
function predictAt({ tokensPerSecond, bytesPerSecond, handshakeMs }: Speed, queue: number, w: RemoteWork) {
  const { geometry, promptTokens, heldTokens, reusedTokens = 0, chunkTokens } = w;
  const computeMs = (tokens: number): number => (Math.max(0, tokens) / tokensPerSecond) * 1_000;
  const linkMs = (tokens: number): number => (handoffBytes(geometry, tokens, chunkTokens) / bytesPerSecond) * 1_000;
  const missing = promptTokens - heldTokens;
  const chunk = Math.min(missing, chunkTokens);
  // Nobody tells how long the waiting prompts are; like this one is the best guess.
  const queueMs = queue * computeMs(promptTokens);
  // The producer needs the rows that are held here, too, but does not send them.
  const startMs = handshakeMs + queueMs + computeMs(heldTokens - reusedTokens);
  return {
    endMs: startMs + Math.max(computeMs(missing), linkMs(missing)) + linkMs(chunk),
    firstGainMs: startMs + computeMs(chunk) + linkMs(chunk),
  };
}

function localTokensPerSecond({ local }: MeasuredRates, { promptTokens }: RemoteWork): number {
  return (promptTokens / local.predictMs(0, promptTokens)) * 1_000;
}
