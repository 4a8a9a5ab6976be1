import type { Clock } from '@muser/service-kit';

interface Sleeper {
  at: number;
  wake: () => void;
}

/** A clock that moves only when a test says so. */
export class ManualClock implements Clock {
  readonly #sleepers = new Set<Sleeper>();
  #wall: number;
  #monotonic = 0;

  /** Begins at the real time, because certificates are checked against that. */
  constructor(nowMs = Date.now()) {
    this.#wall = nowMs;
  }

  now(): number {
    return this.#wall;
  }

  monotonic(): number {
    return this.#monotonic;
  }

  sleep(milliseconds: number, signal: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      const end = (settle: () => void): void => {
        this.#sleepers.delete(sleeper);
        signal.removeEventListener('abort', onAbort);
        settle();
      };
      const onAbort = (): void => end(() => reject(signal.reason as Error));
      const sleeper: Sleeper = { at: this.#monotonic + milliseconds, wake: () => end(resolve) };
      this.#sleepers.add(sleeper);
      signal.addEventListener('abort', onAbort);
      if (signal.aborted) onAbort();
    });
  }

  /** Both times move on, and who has slept long enough is woken. */
  advance(milliseconds: number): void {
    this.#wall += milliseconds;
    this.#monotonic += milliseconds;
    for (const sleeper of [...this.#sleepers].sort((one, other) => one.at - other.at)) {
      if (sleeper.at <= this.#monotonic) sleeper.wake();
    }
  }

  /** As when somebody sets the clock: only the wall-clock time changes. */
  jump(milliseconds: number): void {
    this.#wall += milliseconds;
  }
}
