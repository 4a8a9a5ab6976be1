/** A request in mode `auto` ends at most this much later than by local prefill alone: a share of that, and a constant. */
export const LATENESS = { share: 0.1, ms: 200 } as const;
/** Kept for ending the call, for the install that runs and for putting the sequence back. */
const ABORT_MARGIN_MS = 30;

export interface PaceOptions {
  /** Predicted milliseconds of local prefill for rows [from, to). */
  readonly localMs: (from: number, to: number) => number;
  readonly promptTokens: number;
  /** What the sequence held when the request was placed. */
  readonly heldTokens: number;
  /** When the request was placed: when local prefill could have begun. Milliseconds of a monotonic clock. */
  readonly placedAt: number;
}

/**
 * How long a request in mode `auto` may stay on a remote way. What has come up to the last resume point R is kept when the
 * way is left, so L(R, N) of local work remains then, and what local prefill alone would have taken is L(held, N). The way
 * is left at the moment after which `now + L(R, N)` would pass `1.1 L(held, N) + 200 ms`: whatever the producer does
 * afterwards, or whether it does nothing, the answer is no later than that. Each resume point moves the moment on.
 */
export class Pace {
  private readonly endLimit: number;

  constructor(private readonly options: PaceOptions) {
    const { localMs, promptTokens, heldTokens, placedAt } = options;
    const alone = localMs(heldTokens, promptTokens);
    this.endLimit = placedAt + alone * (1 + LATENESS.share) + LATENESS.ms - ABORT_MARGIN_MS;
  }

  /** When a remote way has to be left at the latest whose last resume point is `resumePoint`. */
  leaveAt(resumePoint: number): number {
    const { localMs, promptTokens } = this.options;
    return this.endLimit - localMs(resumePoint, promptTokens);
  }
}
