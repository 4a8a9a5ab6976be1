import type { MuserError } from '@muser/protocol';
import type { Placement } from '../placement/choose.js';
import type { Producer } from '../producers/directory.js';
import type { Attempt } from './attempts.js';
import type { AttemptReport, CompletionRequest, CompletionResult, MuserReport, ProducerReport } from './completion.js';

/** What is known of a prompt's prefill when decoding begins. */
export interface PrefillOutcome {
  /** Tokens that the sequence held before anything was prefilled. */
  readonly heldTokens: number;
  readonly placement: Placement;
  readonly attempts: readonly Attempt[];
  readonly fallback: MuserError | null;
}

/** The `muser` object of a request that has its answer. */
export function reportOf({ tokens, timeline }: CompletionRequest, outcome: PrefillOutcome): MuserReport {
  const { heldTokens, placement, attempts, fallback } = outcome;
  const kvBytes = sum(attempts, ({ result }) => result.figures.payloadBytes);
  const early = sum(attempts, ({ result }) => result.figures.overlap * result.figures.payloadBytes);
  const last = attempts.at(-1);
  return {
    prefill: wayOf(outcome),
    fallback: fallback === null ? null : { code: fallback.code, message: fallback.message },
    attempts: attempts.map(attemptReport),
    promptTokens: tokens.length,
    cachedTokens: heldTokens,
    ttftMs: timeline.since('firstToken') ?? 0,
    kvBytes,
    shards: sum(attempts, ({ result }) => result.figures.shards),
    overlap: kvBytes === 0 ? 0 : early / kvBytes,
    producer: last === undefined ? null : producerReport(last.producer),
    placement: { reason: placement.reason, predictedMs: placement.predictedMs },
    timeline: timeline.toJSON(),
  };
}

/** For the line that every answered request has in the log. */
export function figuresForLog({ report, completionTokens, finishReason }: CompletionResult): Record<string, unknown> {
  const { prefill, fallback, attempts, promptTokens, ttftMs, kvBytes, timeline } = report;
  return {
    prefill,
    fallback: fallback?.code ?? null,
    attempts: attempts.map(({ producer, from, to, code }) => ({ producerId: producer.nodeId, from, to, code })),
    promptTokens,
    completionTokens,
    finishReason,
    ttftMs,
    kvBytes,
    doneMs: timeline.done,
  };
}

function wayOf({ attempts, heldTokens }: PrefillOutcome): MuserReport['prefill'] {
  const last = attempts.at(-1);
  if (last === undefined) return 'local';
  if (last.result.failure === null) return 'remote';
  return last.to > heldTokens ? 'resumed' : 'local';
}

function attemptReport({ producer, from, to, result }: Attempt): AttemptReport {
  const bytes = result.figures.payloadBytes;
  return { producer: producerReport(producer), from, to, bytes, code: result.failure?.code ?? null };
}

function producerReport({ entry: { nodeId, name, backend } }: Producer): ProducerReport {
  return { nodeId, name, backend };
}

function sum<T>(items: readonly T[], of: (item: T) => number): number {
  return items.reduce((total, item) => total + of(item), 0);
}
