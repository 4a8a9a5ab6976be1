import type { Clock } from '@muser/service-kit';

const WINDOW_MS = 60_000;
const MAX_FAILURES = 10;

/** Counts failed log-ins. The right token is never locked out: it is too long to be guessed. */
export class FailureLimit {
  readonly #clock: Clock;
  #windowStart = Number.NEGATIVE_INFINITY;
  #failures = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Notes one more failure. @returns the seconds to wait when there have been too many, else null */
  fail(): number | null {
    const now = this.#clock.monotonic();
    if (now - this.#windowStart >= WINDOW_MS) {
      this.#windowStart = now;
      this.#failures = 0;
    }
    this.#failures += 1;
    if (this.#failures <= MAX_FAILURES) return null;
    return Math.ceil((this.#windowStart + WINDOW_MS - now) / 1_000);
  }
}
