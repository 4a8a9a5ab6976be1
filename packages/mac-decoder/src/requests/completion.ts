import type { GenerateOptions } from '@muser/metal';
import type { ErrorCode } from '@muser/protocol';
import type { PrefillMode } from '../config.js';
import type { RequestProgress } from './progress.js';
import type { Moment, Timeline } from './timeline.js';

/** How tokens are chosen; every field as in the engine. */
export type Sampling = Pick<
  GenerateOptions,
  | 'temperature'
  | 'topK'
  | 'topP'
  | 'minP'
  | 'repeatPenalty'
  | 'frequencyPenalty'
  | 'presencePenalty'
  | 'seed'
  | 'logitBias'
>;

/** One request, ready to run. */
export interface CompletionRequest {
  /** For the log. */
  readonly id: string;
  /** The whole prompt. */
  readonly tokens: Uint32Array;
  /** Longest answer; prompt and answer fit the context. */
  readonly maxTokens: number;
  readonly mode: PrefillMode;
  readonly sampling: Sampling;
  readonly stopStrings: readonly string[];
  readonly timeline: Timeline;
}

/** Where the answer goes while it is made. Neither call may throw or block. */
export interface CompletionSink {
  text(text: string): void;
  progress(progress: RequestProgress): void;
}

export interface CompletionResult {
  readonly finishReason: 'stop' | 'length';
  readonly promptTokens: number;
  readonly completionTokens: number;
  readonly report: MuserReport;
}

/** The `muser` object of an answer. */
export interface MuserReport {
  /**
   * `resumed`: the transfer failed part-way, and local prefill went on from an installed resume point. `local` with a
   * fallback: a remote prefill was wanted and failed before any resume point.
   */
  readonly prefill: 'local' | 'remote' | 'resumed';
  readonly fallback: { readonly code: ErrorCode; readonly message: string } | null;
  readonly promptTokens: number;
  /** Tokens of the prompt that were in the cache before the request. */
  readonly cachedTokens: number;
  readonly ttftMs: number;
  /** Verified payload bytes. */
  readonly kvBytes: number;
  readonly shards: number;
  /** Share of the payload bytes installed before the producer's prefill ended, 0 to 1. */
  readonly overlap: number;
  readonly producer: { readonly nodeId: string; readonly name: string; readonly backend: string } | null;
  /** Why the prompt was prefilled where it was. */
  readonly placement: {
    readonly reason: string;
    readonly predictedMs: { readonly local: number | null; readonly remote: number | null };
  };
  /** Milliseconds since the request was received. */
  readonly timeline: Partial<Record<Moment, number>>;
}
