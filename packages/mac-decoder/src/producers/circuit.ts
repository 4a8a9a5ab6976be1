import type { ErrorCode } from '@muser/protocol';

const FIRST_PAUSE_MS = 1_000;
const LONGEST_PAUSE_MS = 60_000;
/** After wrong rows: each try that is not found out may give a wrong answer. */
const DISTRUST_PAUSE_MS = 30 * 60_000;

/**
 * Failures that say nothing about the producer's health: of the request, of the client, or of ordinary load. A producer that
 * was too slow for a request is healthy, too: a circuit of its own keeps such requests away (`Producer.pace`).
 */
const HARMLESS: ReadonlySet<ErrorCode> = new Set([
  'CANCELLED',
  'PRODUCER_SLOW',
  'PROMPT_TOO_LONG',
  'QUEUE_FULL',
  'PRODUCER_DRAINING',
  'PRODUCER_PAUSED',
]);

/**
 * Keeps requests away from a producer that just failed.
 *
 * | state   | requests                                   | leaves it by                                              |
 * |---------|--------------------------------------------|-----------------------------------------------------------|
 * | closed  | all                                        | a failure -> open                                         |
 * | open    | none, for a pause that doubles up to 60 s  | the pause's end and the next request -> probing           |
 * | probing | that one, no others                        | its success -> closed; its failure -> open; neither -> open with the pause as it was |
 *
 * A request whose own link dropped may try again before the pause is over (`admitsRetry`), as the one probe. When that fails
 * the pause stays as it is: it is still the same failure.
 *
 * Wrong rows (KV_MISMATCH) open it for half an hour, whatever else ends meanwhile. After that a probe closes it only if its
 * rows were checked and found right; until then requests go there one at a time.
 */
export class Circuit {
  private state: 'closed' | 'open' | 'probing' = 'closed';
  private pauseMs = FIRST_PAUSE_MS;
  private openUntil = 0;
  private distrusted = false;

  constructor(private readonly now: () => number) {}

  /** Whether a request may go to this producer now. */
  get admits(): boolean {
    return this.state === 'closed' || (this.state === 'open' && this.now() >= this.openUntil);
  }

  /** Whether a request that this producer failed may try it again before the pause is over: nobody else does. */
  get admitsRetry(): boolean {
    return this.state !== 'probing' && !this.distrusted;
  }

  /** Whether the next request would be a probe. */
  get awaitsProbe(): boolean {
    return this.state === 'open' && this.admits;
  }

  /** Whether its rows were found wrong, and none right since. */
  get isDistrusted(): boolean {
    return this.distrusted;
  }

  /** Milliseconds until a request may try again; 0 when it may now. */
  get pauseLeftMs(): number {
    return this.state === 'open' ? Math.max(0, Math.ceil(this.openUntil - this.now())) : 0;
  }

  /** A request goes to the producer; exactly one of `succeeded`, `failed` and `undecided` follows. */
  begin(): void {
    if (this.state === 'open') this.state = 'probing';
  }

  /** @param foundRight its rows were checked */
  succeeded(foundRight = false): void {
    // What was under way when wrong rows were found proves nothing, nor does a transfer that nobody checked.
    if (this.distrusted && (this.inPause || !foundRight)) this.undecided();
    else this.close();
  }

  failed(code: ErrorCode): void {
    if (code === 'KV_MISMATCH') this.distrust();
    else if (HARMLESS.has(code)) this.undecided();
    else this.trip();
  }

  /** A failure, whatever its code. */
  trip(): void {
    const { inPause } = this;
    this.state = 'open';
    // Requests that were under way together fail together, and an early retry fails for the same reason: one failure.
    if (inPause) return;
    this.openUntil = this.now() + this.pauseMs;
    this.pauseMs = Math.min(LONGEST_PAUSE_MS, this.pauseMs * 2);
  }

  private get inPause(): boolean {
    return this.state !== 'closed' && this.now() < this.openUntil;
  }

  private distrust(): void {
    this.state = 'open';
    this.distrusted = true;
    this.openUntil = this.now() + DISTRUST_PAUSE_MS;
  }

  private close(): void {
    this.state = 'closed';
    this.distrusted = false;
    this.pauseMs = FIRST_PAUSE_MS;
  }

  /** The request ended for a reason that says nothing about the producer: the next one may probe it. */
  undecided(): void {
    if (this.state === 'probing') this.state = 'open';
  }

  /** The producer came back by itself (it was away from the coordinator's list): all is forgotten. */
  reset(): void {
    this.close();
  }
}
