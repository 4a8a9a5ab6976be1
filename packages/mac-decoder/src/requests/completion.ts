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

/** What one producer did for a request. */
export interface AttemptReport {
  readonly producer: ProducerReport;
  /** Tokens of the prompt that were in the cache when it began; rows from here on were asked for. */
  readonly from: number;
  /** And when it had ended: the prompt without its last token when it completed, else the last resume point. */
  readonly to: number;
  /** Verified payload bytes. */
  readonly bytes: number;
  /** Why it ended early; null when it did not. */
  readonly code: ErrorCode | null;
}

export interface ProducerReport {
  readonly nodeId: string;
  readonly name: string;
  readonly backend: string;
}

/** The `muser` object of an answer. */
export interface MuserReport {
  /**
   * Who prefilled what was not in the cache. `remote`: producers alone, in one attempt or several. `resumed`: producers up to
   * an installed resume point, this decoder from there on. `local`: this decoder alone; with a fallback, a remote prefill
   * was wanted and brought nothing.
   */
  readonly prefill: 'local' | 'remote' | 'resumed';
  /** Why this decoder prefilled although a remote prefill was begun or asked for; null when it did not. */
  readonly fallback: { readonly code: ErrorCode; readonly message: string } | null;
  /** Every remote attempt in its order; each begins where the one before ended. */
  readonly attempts: readonly AttemptReport[];
  readonly promptTokens: number;
  /** Tokens of the prompt that were in the cache before the request. */
  readonly cachedTokens: number;
  readonly ttftMs: number;
  /** Verified payload bytes, of all attempts. */
  readonly kvBytes: number;
  readonly shards: number;
  /** Share of the payload bytes installed before the prefill of the producer that sent them ended, 0 to 1. */
  readonly overlap: number;
  /** That of the last attempt. */
  readonly producer: ProducerReport | null;
  /** Why the prompt was placed where it was at first. */
  readonly placement: {
    readonly reason: string;
    readonly predictedMs: { readonly local: number | null; readonly remote: number | null };
  };
  /** Milliseconds since the request was received. */
  readonly timeline: Partial<Record<Moment, number>>;
}
