import { withoutForeignText, type MuserError } from '@muser/protocol';
import type { Logger } from '@muser/service-kit';
import type { DecoderEngine, SequenceLease } from '../engine/decoder-engine.js';
import { engineCall } from '../errors/engine-errors.js';
import type { TransferResult } from '../ingest/transfer.js';
import { choosePlacement, type Placement } from '../placement/choose.js';
import type { MeasuredRates } from '../placement/rates.js';
import type { ProducerConnections } from '../producers/connections.js';
import type { Producer, ProducerDirectory } from '../producers/directory.js';
import type { CompletionRequest, CompletionResult, CompletionSink, MuserReport } from './completion.js';
import { ProgressMeter } from './progress.js';
import { remotePrefill } from './remote-prefill.js';

/** Prompts shorter than this say nothing about the rate of prefill. */
const MIN_LEARNED_TOKENS = 64;
const MAX_PENALTY_TOKENS = 2 ** 20;

export interface RunnerOptions {
  readonly engine: DecoderEngine;
  readonly directory: ProducerDirectory;
  /** Null without a coordinator: there is nobody to connect to. */
  readonly connections: ProducerConnections | null;
  readonly rates: MeasuredRates;
  readonly transferDeadlineMs: number;
  readonly stallTimeoutMs: number;
  readonly logger: Logger;
}

/** What is known of a prompt's prefill when decoding begins. */
interface PrefillOutcome {
  /** Tokens that the sequence held before anything was prefilled. */
  readonly heldTokens: number;
  readonly placement: Placement;
  readonly transfer: TransferResult | null;
  readonly fallback: MuserError | null;
}

/** Takes requests their whole way: room, placement, prefill there or here, decoding, report. */
export class RequestRunner {
  constructor(private readonly options: RunnerOptions) {}

  /**
   * @throws MuserError CANCELLED when `signal` is aborted, QUEUE_FULL, DEADLINE_EXCEEDED, CONTEXT_FULL, or what the
   *   engine failed with. A remote prefill that fails is no error: the prompt is prefilled here.
   */
  async run(request: CompletionRequest, sink: CompletionSink, signal: AbortSignal): Promise<CompletionResult> {
    const { engine, logger } = this.options;
    const meter = new ProgressMeter(request.timeline.now, (progress) => sink.progress(progress));
    const { waiting } = engine.load();
    if (waiting > 0) meter.report('local', 'queued', waiting, 0);
    const lease = await engine.admit(request.tokens.length + request.maxTokens, signal);
    try {
      const outcome = await this.prefillElsewhere(request, lease, meter, signal);
      const result = await this.decode(request, lease, outcome, meter, sink, signal);
      logger.info({ request: request.id, ...figuresForLog(result) }, 'answered');
      return result;
    } catch (error) {
      const failure = withoutForeignText(signal.aborted ? signal.reason : error);
      const figures = { request: request.id, code: failure.code, promptTokens: request.tokens.length };
      if (failure.code === 'INTERNAL') logger.error({ ...figures, err: failure }, 'not answered');
      else logger.warn(figures, 'not answered');
      throw failure;
    } finally {
      await lease.release();
    }
  }

  private async prefillElsewhere(
    request: CompletionRequest,
    lease: SequenceLease,
    meter: ProgressMeter,
    signal: AbortSignal,
  ): Promise<PrefillOutcome> {
    const { engine, directory, connections, rates } = this.options;
    const { timeline, tokens, mode } = request;
    const heldTokens = lease.sequence.position;
    const placement = choosePlacement(directory, rates, {
      mode,
      promptTokens: tokens.length,
      heldTokens,
      geometry: engine.geometry,
      chunkTokens: engine.chunkTokens,
    });
    timeline.mark('placed');
    const { producer } = placement;
    if (producer === null || connections === null) {
      if (placement.fallback !== null) meter.setFallback(placement.fallback);
      return { heldTokens, placement, transfer: null, fallback: placement.fallback };
    }
    const transfer = await remotePrefill({
      lease,
      producer,
      connections,
      model: engine.identity,
      geometry: engine.geometry,
      tokens,
      chunkTokens: engine.chunkTokens,
      deadlineMs: this.options.transferDeadlineMs,
      stallTimeoutMs: this.options.stallTimeoutMs,
      signal,
      timeline,
      meter,
      rates,
    });
    if (transfer.failure !== null) {
      meter.setFallback(transfer.failure);
      this.options.logger.warn(failureForLog(request, producer, transfer), 'remote prefill failed');
    }
    return { heldTokens, placement, transfer, fallback: transfer.failure };
  }

  private async decode(
    request: CompletionRequest,
    lease: SequenceLease,
    outcome: PrefillOutcome,
    meter: ProgressMeter,
    sink: CompletionSink,
    signal: AbortSignal,
  ): Promise<CompletionResult> {
    const { engine, rates } = this.options;
    const { timeline, tokens } = request;
    const prompt = tokens.slice(lease.sequence.position);
    const startedAt = timeline.now();
    if (prompt.length > 1) timeline.markFirst('prefillStart', startedAt);
    let decoded = 0;
    const generated = await engineCall(() =>
      lease.sequence.generate(
        {
          ...request.sampling,
          prompt,
          maxTokens: request.maxTokens,
          penaltyLastN: Math.min(MAX_PENALTY_TOKENS, request.maxTokens),
          stopTokens: [...engine.endTokens],
          stopStrings: [...request.stopStrings],
          signal,
          onPrefillProgress: (done) => {
            if (prompt.length > 1)
              meter.report('local', 'prefill', tokens.length - prompt.length + done, tokens.length);
          },
        },
        (output) => {
          decoded += output.tokens.length;
          if (output.text !== '') sink.text(output.text);
          meter.report('local', 'decode', decoded, request.maxTokens);
        },
      ),
    );
    const { timings } = generated;
    if (prompt.length > 1) timeline.mark('prefillEnd', startedAt + timings.lastPromptTokenMs);
    timeline.mark('lastTokenEvaluated', startedAt + timings.lastPromptTokenMs);
    timeline.mark('firstToken', startedAt + timings.firstTokenMs);
    timeline.mark('done');
    if (prompt.length >= MIN_LEARNED_TOKENS) rates.local.learn(prompt.length, timings.lastPromptTokenMs);
    return {
      finishReason: generated.reason === 'stop' ? 'stop' : 'length',
      promptTokens: tokens.length,
      completionTokens: generated.generatedTokens,
      report: reportOf(request, outcome),
    };
  }
}

function reportOf({ tokens, timeline }: CompletionRequest, outcome: PrefillOutcome): MuserReport {
  const { heldTokens, placement, transfer, fallback } = outcome;
  const entry = placement.producer?.entry;
  return {
    prefill: wayOf(outcome),
    fallback: fallback === null ? null : { code: fallback.code, message: fallback.message },
    promptTokens: tokens.length,
    cachedTokens: heldTokens,
    ttftMs: timeline.since('firstToken') ?? 0,
    kvBytes: transfer?.figures.payloadBytes ?? 0,
    shards: transfer?.figures.shards ?? 0,
    overlap: transfer?.figures.overlap ?? 0,
    producer: entry === undefined ? null : { nodeId: entry.nodeId, name: entry.name, backend: entry.backend },
    placement: { reason: placement.reason, predictedMs: placement.predictedMs },
    timeline: timeline.toJSON(),
  };
}

function wayOf({ transfer, heldTokens }: PrefillOutcome): MuserReport['prefill'] {
  if (transfer === null) return 'local';
  if (transfer.failure === null) return 'remote';
  return transfer.position > heldTokens ? 'resumed' : 'local';
}

function figuresForLog({ report, completionTokens, finishReason }: CompletionResult): Record<string, unknown> {
  const { prefill, fallback, promptTokens, ttftMs, kvBytes, timeline } = report;
  const code = fallback?.code ?? null;
  return {
    prefill,
    fallback: code,
    promptTokens,
    completionTokens,
    finishReason,
    ttftMs,
    kvBytes,
    doneMs: timeline.done,
  };
}

function failureForLog(
  request: CompletionRequest,
  producer: Producer,
  { failure, reached, position, figures }: TransferResult,
): Record<string, unknown> {
  return {
    request: request.id,
    producerId: producer.entry.nodeId,
    code: failure?.code,
    reason: failure?.message,
    reached,
    resumedAt: position,
    kvBytes: figures.payloadBytes,
  };
}
