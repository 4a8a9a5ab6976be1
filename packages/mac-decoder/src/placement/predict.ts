import { chunkBytesOf, type Geometry, type ProducerEntry } from '@muser/protocol';
import type { MeasuredRates } from './rates.js';

// What is assumed of a producer that was never used: fast enough to be tried, so that its real rates are learned.
const ASSUMED_SPEEDUP = 4;
const ASSUMED_LINK_BYTES_PER_SECOND = 125_000_000;
const ASSUMED_HANDSHAKE_MS = 20;
/** Of this decoder before its first prefill; only the ratio to a producer's rate matters. */
const ASSUMED_LOCAL_TOKENS_PER_SECOND = 500;

/** Bytes of a hand-off of `tokens` rows in chunks of `chunkTokens`, about; window rows as a producer sends them. */
export function handoffBytes(geometry: Geometry, tokens: number, chunkTokens: number): number {
  return (chunkBytesOf(geometry, chunkTokens) * tokens) / chunkTokens;
}

/** Milliseconds until the first token when this decoder prefills `tokens` tokens itself. */
export function predictLocalMs(rates: MeasuredRates, tokens: number): number {
  return (tokens / localRate(rates)) * 1_000;
}

/** The same when `producer` prefills them. The link works while the producer computes; only the last chunk is left. */
export function predictRemoteMs(
  rates: MeasuredRates,
  producer: ProducerEntry,
  request: { geometry: Geometry; tokens: number; chunkTokens: number },
): number {
  const learned = rates.of(producer.nodeId);
  const { geometry, tokens, chunkTokens } = request;
  const tokensPerSecond =
    learned.prefill.perSecond ?? (producer.prefillTokensPerSecond || localRate(rates) * ASSUMED_SPEEDUP);
  const bytesPerSecond = learned.link.perSecond ?? ASSUMED_LINK_BYTES_PER_SECOND;
  const computeMs = (tokens / tokensPerSecond) * 1_000;
  const linkMs = (handoffBytes(geometry, tokens, chunkTokens) / bytesPerSecond) * 1_000;
  const tailMs = (handoffBytes(geometry, Math.min(tokens, chunkTokens), chunkTokens) / bytesPerSecond) * 1_000;
  const handshakesPerSecond = learned.handshakes.perSecond;
  const handshakeMs = handshakesPerSecond === null ? ASSUMED_HANDSHAKE_MS : 1_000 / handshakesPerSecond;
  // Nobody tells how long the waiting prompts are; like this one is the best guess.
  const queueMs = producer.queueLength * computeMs;
  return handshakeMs + queueMs + Math.max(computeMs, linkMs) + tailMs;
}

function localRate(rates: MeasuredRates): number {
  return rates.local.perSecond ?? ASSUMED_LOCAL_TOKENS_PER_SECOND;
}
