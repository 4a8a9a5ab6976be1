import { setTimeout as sleep } from 'node:timers/promises';
import { MuserError, withoutForeignText } from '@muser/protocol';
import type { Logger } from '@muser/service-kit';
import type { DecoderEngine } from '../engine/decoder-engine.js';
import type { SequenceLease } from '../engine/sequence-lease.js';
import { engineCall } from '../errors/engine-errors.js';
import { stagedBytes } from '../ingest/staged-bytes.js';
import { choosePlacement } from '../placement/choose.js';
import { Pace } from '../placement/pace.js';
import type { MeasuredRates } from '../placement/rates.js';
import type { ProducerConnections } from '../producers/connections.js';
import type { ProducerDirectory } from '../producers/directory.js';
import { attemptPrefill } from './attempts.js';
import type { CompletionRequest, CompletionResult, CompletionSink } from './completion.js';
import type { KvSamples } from './kv-samples.js';
import { ProgressMeter } from './progress.js';
import { remotePrefill } from './remote-prefill.js';
import { figuresForLog, reportOf, type PrefillOutcome } from './report.js';

/** Steps shorter than this say nothing about the rate of prefill. */
const MIN_LEARNED_TOKENS = 64;
const MAX_PENALTY_TOKENS = 2 ** 20;

export interface RunnerOptions {
  readonly engine: DecoderEngine;
  readonly directory: ProducerDirectory;
  /** Null without a coordinator: there is nobody to connect to. */
  readonly connections: ProducerConnections | null;
  readonly rates: MeasuredRates;
  readonly samples: KvSamples;
  readonly transferDeadlineMs: number;
  readonly stallTimeoutMs: number;
  readonly logger: Logger;
}

/** Takes requests their whole way: room, placement, prefill there or here, decoding, report. */
export class RequestRunner {
  private readonly staged = stagedBytes();

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
    const { tokens, maxTokens } = request;
    const lease = await engine.admit({ prompt: tokens, reserveTokens: tokens.length + maxTokens }, signal);
    // Of answered requests only where the way is free: one that names it wants to see that way at work.
    let keep = request.mode === 'auto';
    try {
      const outcome = await this.prefillElsewhere(request, lease, meter, signal);
      const result = await this.decode(request, lease, outcome, meter, sink, signal);
      logger.info({ request: request.id, ...figuresForLog(result) }, 'answered');
      return result;
    } catch (error) {
      const failure = withoutForeignText(signal.aborted ? signal.reason : error);
      // Also when the client has left meanwhile.
      keep = withoutForeignText(error).code !== 'ENGINE_FAILED';
      const figures = { request: request.id, code: failure.code, promptTokens: request.tokens.length };
      if (failure.code === 'INTERNAL') logger.error({ ...figures, err: failure }, 'not answered');
      else logger.warn(figures, 'not answered');
      throw failure;
    } finally {
      await lease.release(keep && this.options.samples.mayKeep(lease.origins.producerIds));
    }
  }

  private async prefillElsewhere(
    request: CompletionRequest,
    lease: SequenceLease,
    meter: ProgressMeter,
    signal: AbortSignal,
  ): Promise<PrefillOutcome> {
    const { engine, directory, connections, rates, samples } = this.options;
    const { timeline, tokens, mode } = request;
    const { geometry, chunkTokens } = engine;
    const heldTokens = lease.sequence.position;
    const placedAt = timeline.now();
    const localMs = (from: number, to: number): number => rates.local.predictMs(from, to);
    const pace = mode === 'auto' ? new Pace({ localMs, promptTokens: tokens.length, heldTokens, placedAt }) : null;
    const work = { promptTokens: tokens.length, geometry, chunkTokens };
    const patienceMs = pace === null ? Infinity : pace.leaveAt(heldTokens) - placedAt;
    const placement = choosePlacement(directory, rates, { ...work, mode, heldTokens, patienceMs });
    timeline.mark('placed');
    const { producer } = placement;
    if (producer === null || connections === null) {
      if (placement.fallback !== null) meter.setFallback(placement.fallback);
      return { heldTokens, placement, attempts: [], fallback: placement.fallback };
    }
    const attempts = await attemptPrefill({
      requestId: request.id,
      mode,
      first: producer,
      work,
      heldTokens,
      pace,
      deadlineMs: this.options.transferDeadlineMs,
      directory,
      rates,
      attempt: (chosen, limits) =>
        remotePrefill({
          ...limits,
          lease,
          producer: chosen,
          connections,
          staged: this.staged,
          geometry,
          tokens,
          chunkTokens,
          signal,
          pace,
          timeline,
          meter,
          rates,
          samples,
          distrust: (producerIds) => {
            directory.distrust(producerIds);
            engine.dropRowsOf(producerIds);
          },
          model: engine.identity,
          stallTimeoutMs: this.options.stallTimeoutMs,
        }),
      now: timeline.now,
      sleep: (milliseconds) => pauseUnless(signal, milliseconds),
      random: Math.random,
      logger: this.options.logger,
    });
    const fallback = attempts.at(-1)?.result.failure ?? null;
    if (fallback !== null) meter.setFallback(fallback);
    return { heldTokens, placement, attempts, fallback };
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
    const heldTokens = lease.sequence.position;
    const prompt = tokens.slice(heldTokens);
    const startedAt = timeline.now();
    const steps = new StepClock(startedAt, (from, to, milliseconds) => {
      if (to - from >= MIN_LEARNED_TOKENS) rates.local.learn(heldTokens + from, heldTokens + to, milliseconds);
    });
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
            steps.reached(done, timeline.now());
            if (prompt.length > 1) meter.report('local', 'prefill', heldTokens + done, tokens.length);
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
    return {
      finishReason: generated.reason === 'stop' ? 'stop' : 'length',
      promptTokens: tokens.length,
      completionTokens: generated.generatedTokens,
      report: reportOf(request, outcome),
    };
  }
}

/** Tells how long each step of a local prefill took. */
class StepClock {
  private from = 0;

  constructor(
    private since: number,
    private readonly onStep: (from: number, to: number, milliseconds: number) => void,
  ) {}

  reached(to: number, at: number): void {
    this.onStep(this.from, to, at - this.since);
    this.from = to;
    this.since = at;
  }
}

async function pauseUnless(signal: AbortSignal, milliseconds: number): Promise<void> {
  try {
    await sleep(milliseconds, undefined, { signal });
  } catch (cause) {
    throw new MuserError('CANCELLED', 'The request was cancelled between two attempts.', { cause });
  }
}
