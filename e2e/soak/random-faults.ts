import { Random, type ConnectionFaults, type Faults } from '@muser/testing';

/** A connection gets so far before something happens to it, at least and at most; any order of magnitude is as likely. */
const TO_CLIENT_BYTES = [2_000, 60_000_000] as const;
const TO_SERVER_BYTES = [500, 300_000] as const;
const SHARES = { ends: 0.6, toServer: 0.25, slow: 0.15, late: 0.15 };
const SLOW_BYTES_PER_SECOND = [1_000_000, 20_000_000] as const;
const LATE_MS = [1, 30] as const;
const ENDS = ['corrupt', 'drop', 'replay', 'cut', 'reset', 'stall', 'half-open'] as const;
const RANGE_BYTES = [1, 4_096] as const;

/** What happens to each new connection; a fault that ends it comes at a random byte. */
export class RandomFaults {
  readonly #random: Random;
  /** How often each kind was drawn. */
  readonly drawn: Record<string, number> = {};

  constructor(seed: number) {
    this.#random = new Random(seed);
  }

  next(): ConnectionFaults {
    const random = this.#random;
    const toClient = this.#timing();
    const toServer: Faults = {};
    if (random.next() < SHARES.ends) {
      if (random.next() < SHARES.toServer) Object.assign(toServer, this.#end(TO_SERVER_BYTES));
      else Object.assign(toClient, this.#end(TO_CLIENT_BYTES));
    } else this.#count('none');
    return { toServer, toClient };
  }

  #timing(): Faults {
    const random = this.#random;
    const faults: Faults = {};
    if (random.next() < SHARES.slow) {
      faults.bytesPerSecond = random.integer(...SLOW_BYTES_PER_SECOND);
      this.#count('slow');
    }
    if (random.next() < SHARES.late) {
      faults.delayMs = random.integer(...LATE_MS);
      this.#count('late');
    }
    return faults;
  }

  #end([least, most]: readonly [number, number]): Faults {
    const random = this.#random;
    const at = Math.round(least * (most / least) ** random.next());
    const range = { at, count: random.integer(...RANGE_BYTES) };
    const kind = random.pick(ENDS);
    this.#count(kind);
    switch (kind) {
      case 'corrupt':
        return { corruptByte: at };
      case 'drop':
        return { drop: range };
      case 'replay':
        return { replay: range };
      case 'cut':
        return { cutAtByte: at };
      case 'reset':
        return { resetAtByte: at };
      case 'stall':
        return { stallAtByte: at };
      case 'half-open':
        return { halfOpenAtByte: at };
    }
  }

  #count(kind: string): void {
    this.drawn[kind] = (this.drawn[kind] ?? 0) + 1;
  }
}
