import type { Clock } from '@muser/service-kit';

/** A producer that is silent for so long is unreachable. */
export const SILENCE_LIMIT_MS = 5_000;

/** Calls back once when a sign of life does not come in time. */
export class Watchdog {
  readonly #clock: Clock;
  readonly #onSilence: (limitMs: number) => void;
  #wait = new AbortController();

  constructor(clock: Clock, onSilence: (limitMs: number) => void) {
    this.#clock = clock;
    this.#onSilence = onSilence;
  }

  /** The next sign of life is expected within `limitMs` from now; what was expected before is forgotten. */
  expectWithin(limitMs: number): void {
    this.stop();
    this.#wait = new AbortController();
    this.#clock.sleep(limitMs, this.#wait.signal).then(
      () => this.#onSilence(limitMs),
      () => undefined,
    );
  }

  stop(): void {
    this.#wait.abort();
  }
}
