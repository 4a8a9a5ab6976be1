import { MIN_PROMPT_TOKENS, MuserError, type Geometry } from '@muser/protocol';
import type { PrefillMode } from '../config.js';
import type { Producer, ProducerDirectory } from '../producers/directory.js';
import { predictRemote, type RemotePrediction } from './predict.js';
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
  /** Mode `auto`: how long a remote way may bring nothing before it is left (Pace.leaveAt). */
  readonly patienceMs: number;
}

/** Chooses the way of one request. */
export function choosePlacement(
  directory: ProducerDirectory,
  rates: MeasuredRates,
  request: PlacementRequest,
): Placement {
  const { mode, promptTokens, heldTokens } = request;
  if (mode === 'local') return atHome('Local prefill was asked for.');
  if (promptTokens < MIN_PROMPT_TOKENS) {
    const message = `A prompt needs at least ${MIN_PROMPT_TOKENS} tokens to be handed off.`;
    return mode === 'auto' ? atHome(message) : atHome(message, new MuserError('INVALID_REQUEST', message));
  }
  if (promptTokens - heldTokens < MIN_PROMPT_TOKENS) {
    return atHome('All of the prompt but its last token is here already.');
  }
  const available = directory.available(promptTokens);
  if (available.length === 0) {
    const message = directory.explainAbsence(promptTokens);
    return mode === 'auto' ? atHome(message) : atHome(message, new MuserError('NO_PRODUCER', message));
  }
  const candidates = available.map((producer) => predicted(rates, producer, request));
  const localMs = rates.local.predictMs(heldTokens, promptTokens);
  const usable =
    mode === 'auto' ? candidates.filter((candidate) => worthATry(candidate, request, localMs)) : candidates;
  const best = soonest(usable);
  const shown = best ?? soonest(candidates);
  const predictedMs = { local: Math.round(localMs), remote: shown === null ? null : Math.round(shown.endMs) };
  const comparison = `predicted ${predictedMs.remote} ms by ${shown?.producer.entry.name}, ${predictedMs.local} ms here`;
  if (best === null) {
    const why = shown === null ? 'Local prefill' : whyNot(shown, localMs);
    return { producer: null, fallback: null, reason: `${why}: ${comparison}.`, predictedMs };
  }
  const why = mode === 'remote' ? 'Remote prefill was asked for' : 'Remote prefill is sooner';
  return { producer: best.producer, fallback: null, reason: `${why}: ${comparison}.`, predictedMs };
}

export interface NextRequest extends PlacementRequest {
  /** Producers that failed in this request. */
  readonly avoided: ReadonlySet<string>;
  /** The producer whose link dropped, and the pause before it is tried again; null when it is not. */
  readonly again: { readonly nodeId: string; readonly waitMs: number } | null;
}

/** How a request goes on after an attempt that ended early. */
export interface NextWay {
  /** Null: here, from the last resume point on. */
  readonly producer: Producer | null;
  readonly waitMs: number;
  /** Predicted milliseconds from now to the first token, with the pause. */
  readonly predictedMs: { readonly local: number; readonly remote: number | null };
}

/** Chooses the way with the smaller predicted end for what is missing; in mode `remote` a remote one while there is one. */
export function chooseNext(directory: ProducerDirectory, rates: MeasuredRates, request: NextRequest): NextWay {
  const { mode, promptTokens, heldTokens, avoided, again } = request;
  const localMs = rates.local.predictMs(heldTokens, promptTokens);
  const home: NextWay = { producer: null, waitMs: 0, predictedMs: { local: Math.round(localMs), remote: null } };
  if (promptTokens - heldTokens < MIN_PROMPT_TOKENS) return home;
  const others = directory
    .available(promptTokens)
    .filter(({ entry }) => !avoided.has(entry.nodeId) && entry.nodeId !== again?.nodeId)
    .map((producer) => predicted(rates, producer, request));
  const same = again === null ? null : directory.availableAgain(again.nodeId, promptTokens);
  const candidates = [...others];
  if (same !== null && again !== null) {
    // What it computed for this request a moment ago it still has.
    const { endMs, firstGainMs } = predicted(rates, same, { ...request, reusedTokens: heldTokens });
    const { waitMs } = again;
    candidates.push({ producer: same, waitMs, endMs: endMs + waitMs, firstGainMs: firstGainMs + waitMs });
  }
  const usable =
    mode === 'auto' ? candidates.filter((candidate) => worthATry(candidate, request, localMs)) : candidates;
  const best = soonest(usable);
  if (best === null) return home;
  const predictedMs = { ...home.predictedMs, remote: Math.round(best.endMs) };
  return { producer: best.producer, waitMs: best.waitMs, predictedMs };
}

interface Candidate extends RemotePrediction {
  readonly producer: Producer;
  readonly waitMs: number;
}

function predicted(
  rates: MeasuredRates,
  producer: Producer,
  request: PlacementRequest & { readonly reusedTokens?: number },
): Candidate {
  // What was slow once may be fast now, and only a try tells. A probe is left in time like any other request.
  const probe = producer.pace.awaitsProbe || rates.of(producer.entry.nodeId).stale;
  return { producer, waitMs: 0, ...predictRemote(rates, producer.entry, request, probe ? 'hoped' : 'believed') };
}

/** One that would be left before it brings anything is not begun. */
function worthATry({ producer, endMs, firstGainMs }: Candidate, { patienceMs }: PlacementRequest, localMs: number) {
  return producer.pace.admits && endMs < localMs && firstGainMs <= patienceMs;
}

function whyNot({ producer, endMs }: Candidate, localMs: number): string {
  const { pace, entry } = producer;
  if (!pace.admits) return `${entry.name} was too slow a moment ago`;
  return endMs < localMs ? 'The first rows would come too late to go back in time' : 'Local prefill is sooner';
}

function soonest(candidates: readonly Candidate[]): Candidate | null {
  return [...candidates].sort((a, b) => a.endMs - b.endMs)[0] ?? null;
}

function atHome(reason: string, fallback: MuserError | null = null): Placement {
  return { producer: null, fallback, reason, predictedMs: { local: null, remote: null } };
}
