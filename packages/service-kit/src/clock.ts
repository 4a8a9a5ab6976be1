import { setTimeout as delay } from 'node:timers/promises';

/** Time as a dependency, so that tests decide how it passes. */
export interface Clock {
  /** Wall-clock time, milliseconds since 1970: for what is shown, stored or signed. It can jump. */
  now(): number;
  /** Milliseconds since some fixed moment: for measuring waits. It never jumps. */
  monotonic(): number;
  /** Resolves after `milliseconds`; rejects with the signal's reason as soon as it is aborted. */
  sleep(milliseconds: number, signal: AbortSignal): Promise<void>;
}

export const systemClock: Clock = {
  now: () => Date.now(),
  monotonic: () => performance.now(),
  async sleep(milliseconds, signal) {
    try {
      await delay(milliseconds, undefined, { signal });
    } catch (error) {
      signal.throwIfAborted();
      throw error;
    }
  },
};
