import type { MuserError } from '@muser/protocol';
import type { Logger } from '@muser/service-kit';
import type { PrefillMode } from '../config.js';
import type { TransferResult } from '../ingest/transfer.js';
import { chooseNext, type PlacementRequest } from '../placement/choose.js';
import type { Pace } from '../placement/pace.js';
import type { MeasuredRates } from '../placement/rates.js';
import type { Producer, ProducerDirectory } from '../producers/directory.js';

/** Of one request, with all producers together. */
const MOST_ATTEMPTS = 8;
/** Of one producer whose link drops again and again, without a new resume point in between. */
const MOST_DROPS = 5;
const FIRST_PAUSE_MS = 100;
/** How much longer each pause is than the one before: the link may be down for three seconds and more. */
const PAUSE_GROWTH = 3;
/** A pause is at least this share of its length, at random: requests that failed together do not come back together. */
const LEAST_JITTER = 0.75;

/** What one producer did for a request. */
export interface Attempt {
  readonly producer: Producer;
  /** Tokens that the sequence held when it began, and when it had ended. */
  readonly from: number;
  readonly to: number;
  readonly result: TransferResult;
}

export interface AttemptsOptions {
  /** For the log. */
  readonly requestId: string;
  readonly mode: PrefillMode;
  readonly first: Producer;
  readonly work: Omit<PlacementRequest, 'mode' | 'heldTokens' | 'patienceMs'>;
  readonly heldTokens: number;
  /** Null where the request waits for a producer whatever it takes. */
  readonly pace: Pace | null;
  /** For all attempts and pauses together. */
  readonly deadlineMs: number;
  readonly directory: ProducerDirectory;
  readonly rates: MeasuredRates;
  /** Runs one attempt; throws only when the request was cancelled or the engine cannot go on. */
  readonly attempt: (producer: Producer, limits: AttemptLimits) => Promise<TransferResult>;
  readonly now: () => number;
  /** Waits; throws when the request is cancelled meanwhile. */
  readonly sleep: (milliseconds: number) => Promise<void>;
  readonly random: () => number;
  readonly logger: Logger;
}

export interface AttemptLimits {
  readonly deadlineMs: number;
  readonly bytesBefore: number;
}

/**
 * Lets producers prefill a prompt, one attempt after another, each from where the last one left the sequence. Ends when
 * all rows are there, or when local prefill from the last resume point is the better way, or the only one.
 * @returns every attempt in its order, at least one; what made the last one fail says why local prefill goes on.
 */
export async function attemptPrefill(options: AttemptsOptions): Promise<Attempt[]> {
  return new Attempts(options).run();
}

class Attempts {
  private readonly done: Attempt[] = [];
  private readonly avoided = new Set<string>();
  private readonly endsAt: number;
  /** The producer whose link dropped last, and how often since the last resume point. */
  private dropped: { nodeId: string; drops: number } | null = null;

  constructor(private readonly options: AttemptsOptions) {
    this.endsAt = options.now() + options.deadlineMs;
  }

  async run(): Promise<Attempt[]> {
    for (let producer: Producer | null = this.options.first; producer !== null; producer = await this.next()) {
      const from = this.position;
      const bytesBefore = this.done.reduce((sum, { result }) => sum + result.figures.payloadBytes, 0);
      const deadlineMs = Math.max(1, Math.ceil(this.endsAt - this.options.now()));
      const result = await this.options.attempt(producer, { deadlineMs, bytesBefore });
      const attempt = { producer, from, to: result.position, result };
      this.done.push(attempt);
      if (result.failure === null) break;
      this.logFailure(attempt, result.failure);
      this.judge(attempt, result.failure);
    }
    return this.done;
  }

  private get position(): number {
    return this.done.at(-1)?.to ?? this.options.heldTokens;
  }

  /** Whose fault it was decides who is asked again. */
  private judge({ producer, from, to, result }: Attempt, failure: MuserError): void {
    const { nodeId } = producer.entry;
    // The rows of one whose link dropped may be the wrong ones.
    if (failure.code === 'KV_MISMATCH') this.dropped = null;
    const before = this.dropped?.nodeId === nodeId ? this.dropped.drops : 0;
    // A link can only drop that was there: a producer that never answered is not waited for.
    const linkWasUp = before > 0 || result.figures.beginAt !== null;
    // One whose rows were found wrong meanwhile takes no retry, so there is nothing to wait for.
    const mayRetry = linkWasUp && !producer.circuit.isDistrusted;
    if (failure.code === 'PEER_UNREACHABLE' && mayRetry) this.noteDrop(nodeId, to > from ? 1 : before + 1);
    else this.avoid(nodeId);
  }

  private noteDrop(nodeId: string, drops: number): void {
    if (drops < MOST_DROPS) this.dropped = { nodeId, drops };
    else this.avoid(nodeId);
  }

  private avoid(nodeId: string): void {
    this.avoided.add(nodeId);
    if (this.dropped?.nodeId === nodeId) this.dropped = null;
  }

  /** Where to go on, after the pause that it needs; null: here. */
  private async next(): Promise<Producer | null> {
    const last = this.done.at(-1);
    const mayGoOn =
      last !== undefined &&
      !last.result.failedHere &&
      last.result.failure?.code !== 'PRODUCER_SLOW' &&
      this.done.length < MOST_ATTEMPTS;
    if (!mayGoOn) return null;
    let waitMs = this.pauseMs();
    for (;;) {
      const way = this.choose(waitMs);
      this.logChoice(way);
      const { producer } = way;
      if (producer === null) return null;
      if (way.waitMs > 0) {
        await this.options.sleep(way.waitMs);
        // Meanwhile the producer may have gone, or another one come.
        waitMs = 0;
      } else if (producer.entry.nodeId === this.dropped?.nodeId && !producer.circuit.admitsRetry) {
        // Another request is finding out whether the link is back.
        this.noteDrop(producer.entry.nodeId, this.dropped.drops + 1);
        waitMs = this.pauseMs();
      } else return producer;
    }
  }

  private choose(waitMs: number) {
    const { directory, rates, mode, work, pace, now } = this.options;
    const deadlineLeftMs = this.endsAt - now();
    const again = this.dropped === null || waitMs >= deadlineLeftMs ? null : { nodeId: this.dropped.nodeId, waitMs };
    const heldTokens = this.position;
    const patienceMs = pace === null ? Infinity : pace.leaveAt(heldTokens) - now();
    const request = { ...work, mode, heldTokens, patienceMs, avoided: this.avoided, again };
    if (deadlineLeftMs > 0) return chooseNext(directory, rates, request);
    return {
      producer: null,
      waitMs: 0,
      predictedMs: { local: rates.local.predictMs(heldTokens, work.promptTokens), remote: null },
    };
  }

  private pauseMs(): number {
    if (this.dropped === null) return 0;
    const longest = FIRST_PAUSE_MS * PAUSE_GROWTH ** (this.dropped.drops - 1);
    return Math.ceil(longest * (LEAST_JITTER + (1 - LEAST_JITTER) * this.options.random()));
  }

  private logFailure({ producer, from, to, result }: Attempt, { code, message }: MuserError): void {
    const { reached, figures } = result;
    this.options.logger.warn(
      {
        request: this.options.requestId,
        producerId: producer.entry.nodeId,
        attempt: this.done.length,
        code,
        reason: message,
        reached,
        heldTokens: from,
        resumedAt: to,
        kvBytes: figures.payloadBytes,
      },
      'remote prefill failed',
    );
  }

  private logChoice({ producer, waitMs, predictedMs }: ReturnType<typeof chooseNext>): void {
    const way = producer === null ? 'local' : producer.entry.nodeId === this.dropped?.nodeId ? 'again' : 'other';
    this.options.logger.info(
      {
        request: this.options.requestId,
        way,
        producerId: producer?.entry.nodeId ?? null,
        fromToken: this.position,
        waitMs,
        predictedMs,
      },
      'prefill goes on',
    );
  }
}
