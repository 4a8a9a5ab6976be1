import { MuserError } from '@muser/protocol';
import type { Pace } from '../placement/pace.js';

/** Ends a remote attempt of a request in mode `auto` at the moment that its pace allows. */
export class PaceTimer {
  private readonly leaving = new AbortController();
  private timer: NodeJS.Timeout | undefined;

  /** `resumePoint`: rows that the sequence holds; `now`: the clock of the pace. */
  constructor(
    private readonly pace: Pace,
    private readonly now: () => number,
    private resumePoint: number,
  ) {
    this.arm();
  }

  /** Aborted with PRODUCER_SLOW when the way has to be left. */
  get signal(): AbortSignal {
    return this.leaving.signal;
  }

  /** The sequence can go on from here now. */
  reached(resumePoint: number): void {
    // The moment only moves on, so it is soon enough to see that when the timer fires.
    this.resumePoint = resumePoint;
  }

  stop(): void {
    clearTimeout(this.timer);
  }

  private arm(): void {
    const left = this.pace.leaveAt(this.resumePoint) - this.now();
    if (left <= 0) this.leaving.abort(tooSlow(this.resumePoint));
    else this.timer = setTimeout(() => this.arm(), Math.ceil(left));
  }
}

function tooSlow(resumePoint: number): MuserError {
  const message = 'The producer fell behind, and local prefill had become the sooner way.';
  return new MuserError('PRODUCER_SLOW', message, { details: { resumePoint } });
}
