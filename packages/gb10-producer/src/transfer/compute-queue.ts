import { MuserError } from '@muser/protocol';

import { orAborted } from '../abort.js';

interface Waiter {
  readonly onPosition: (position: number) => void;
  readonly start: () => void;
}

/** A place in the queue: waiting, then holding one of the compute slots, then left. */
export interface QueuePlace {
  /** How many were before this one when it joined; 0: it computes at once. */
  readonly ahead: number;
  /** Resolves when a compute slot is this place's own; rejects with the signal's reason. */
  turn(signal: AbortSignal): Promise<void>;
  /** Gives the slot or the place up. May be called at any time, any number of times. */
  leave(): void;
}

/** First come, first served: at most `concurrency` compute, at most `queueLimit` wait. */
export class ComputeQueue {
  readonly #concurrency: number;
  readonly #queueLimit: number;
  readonly #waiting: Waiter[] = [];
  #computing = 0;

  constructor(limits: { concurrency: number; queueLimit: number }) {
    this.#concurrency = limits.concurrency;
    this.#queueLimit = limits.queueLimit;
  }

  get waiting(): number {
    return this.#waiting.length;
  }

  get computing(): number {
    return this.#computing;
  }

  /**
   * Takes a place. `onPosition` hears how many are before it, whenever that changes, until it computes.
   * @throws MuserError QUEUE_FULL
   */
  join(onPosition: (ahead: number) => void): QueuePlace {
    let state = 'waiting' as 'waiting' | 'computing' | 'left';
    let started: () => void = () => {};
    const turn = new Promise<void>((resolve) => (started = resolve));
    const start = (): void => {
      state = 'computing';
      this.#computing += 1;
      started();
    };
    const waiter: Waiter = { onPosition, start };
    if (this.#computing < this.#concurrency && this.#waiting.length === 0) {
      start();
    } else {
      if (this.#waiting.length >= this.#queueLimit) throw this.#full();
      this.#waiting.push(waiter);
    }
    return {
      ahead: state === 'computing' ? 0 : this.#computing + this.#waiting.length - 1,
      turn: (signal) => orAborted(turn, signal),
      leave: () => {
        const was = state;
        state = 'left';
        if (was === 'waiting') this.#withdraw(waiter);
        if (was === 'computing') this.#startNext();
      },
    };
  }

  #full(): MuserError {
    return new MuserError(
      'QUEUE_FULL',
      `${this.#waiting.length} transfers wait already, the limit is ${this.#queueLimit}`,
      {
        details: { waiting: this.#waiting.length, limit: this.#queueLimit },
      },
    );
  }

  #withdraw(waiter: Waiter): void {
    const index = this.#waiting.indexOf(waiter);
    if (index < 0) return;
    this.#waiting.splice(index, 1);
    this.#announceFrom(index);
  }

  #startNext(): void {
    this.#computing -= 1;
    const next = this.#waiting.shift();
    if (next === undefined) return;
    next.start();
    this.#announceFrom(0);
  }

  #announceFrom(index: number): void {
    for (const [offset, waiter] of this.#waiting.slice(index).entries()) {
      waiter.onPosition(this.#computing + index + offset);
    }
  }
}
