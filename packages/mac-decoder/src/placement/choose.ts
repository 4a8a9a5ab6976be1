import { MIN_PROMPT_TOKENS, MuserError, type Geometry } from '@muser/protocol';
import type { PrefillMode } from '../config.js';
import type { Producer, ProducerDirectory } from '../producers/directory.js';
import { predictLocalMs, predictRemoteMs } from './predict.js';
import type { MeasuredRates } from './rates.js';

/** Where a prompt is prefilled, and why. */
export interface Placement {
  /** The producer that does it; null when this decoder does. */
  readonly producer: Producer | null;
  /** Set when a remote prefill was asked for and cannot be. */
  readonly fallback: MuserError | null;
  /** For people: one sentence. */
  readonly reason: string;
  /** Predicted times to the first token in milliseconds; null where nothing was predicted. */
  readonly predictedMs: { readonly local: number | null; readonly remote: number | null };
}

export interface PlacementRequest {
  readonly mode: PrefillMode;
  readonly promptTokens: number;
  readonly heldTokens: number;
  readonly geometry: Geometry;
  readonly chunkTokens: number;
}

/** Chooses the way of one request. */
export function choosePlacement(
  directory: ProducerDirectory,
  rates: MeasuredRates,
  request: PlacementRequest,
): Placement {
  const { mode, promptTokens } = request;
  const tokens = promptTokens - request.heldTokens;
  if (mode === 'local') return atHome('Local prefill was asked for.');
  if (tokens < MIN_PROMPT_TOKENS) {
    const message = `A prompt needs at least ${MIN_PROMPT_TOKENS} tokens to be handed off.`;
    return mode === 'auto' ? atHome(message) : atHome(message, new MuserError('INVALID_REQUEST', message));
  }
  const best = directory
    .available(promptTokens)
    .map((producer) => ({ producer, ms: predictRemoteMs(rates, producer.entry, { ...request, tokens }) }))
    .sort((a, b) => a.ms - b.ms)[0];
  if (best === undefined) {
    const message = directory.explainAbsence(promptTokens);
    return mode === 'auto' ? atHome(message) : atHome(message, new MuserError('NO_PRODUCER', message));
  }
  const predictedMs = { local: Math.round(predictLocalMs(rates, tokens)), remote: Math.round(best.ms) };
  const comparison = `predicted ${predictedMs.remote} ms by ${best.producer.entry.name}, ${predictedMs.local} ms here`;
  if (mode === 'auto' && predictedMs.local <= predictedMs.remote) {
    return { producer: null, fallback: null, reason: `Local prefill is sooner: ${comparison}.`, predictedMs };
  }
  const why = mode === 'remote' ? 'Remote prefill was asked for' : 'Remote prefill is sooner';
  return { producer: best.producer, fallback: null, reason: `${why}: ${comparison}.`, predictedMs };
}

function atHome(reason: string, fallback: MuserError | null = null): Placement {
  return { producer: null, fallback, reason, predictedMs: { local: null, remote: null } };
}
