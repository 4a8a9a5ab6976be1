import { Random } from '@muser/testing';

export type Way = 'remote' | 'auto' | 'local';

/** One transfer as it was drawn before the run. */
export interface Planned {
  readonly index: number;
  /** Tokens of its document, about; null: that of an earlier one, by its index. */
  readonly tokens: number;
  readonly repeats: number | null;
  readonly way: Way;
  /** The client leaves after so many progress events; null: it stays. */
  readonly leaveAfter: number | null;
  /** Whoever left asks again. */
  readonly returns: boolean;
  /** A producer is killed while it runs. */
  readonly kill: boolean;
  /** The link freezes for so long when its first bytes come; null: it does not. */
  readonly freezeMs: number | null;
}

const SHORTEST = 2;
const LONGEST = 8_000;
const SHARES = { auto: 0.15, local: 0.05, leaves: 0.15, returns: 0.5, repeats: 0.1, freezes: 0.04 };
/** A producer is killed once in so many transfers. */
const TRANSFERS_PER_KILL = 35;
const LONGEST_FREEZE_MS = 3_000;
/** Progress comes several times a second; a short prompt has a handful of it. */
const MOST_EVENTS = 8;
/** A soak of so many begins with as many prompts of the greatest length as run at once: memory that is touched once stays. */
const LEAST_TRANSFERS_WITH_WARM_UP = 100;
const WARM_UPS = 3;

const WARM_UP = { tokens: LONGEST, repeats: null, way: 'remote', leaveAfter: null, freezeMs: null } as const;

/** The same seed gives the same transfers. Lengths are spread evenly by ratio: as many below 126 tokens as above. */
export function plan(count: number, seed: number): Planned[] {
  const random = new Random(seed);
  const planned: Planned[] = [];
  for (let index = 0; index < count; index += 1) {
    const chance = (share: number): boolean => random.next() < share;
    const drawn = random.next();
    const way = drawn < SHARES.auto ? 'auto' : drawn < SHARES.auto + SHARES.local ? 'local' : 'remote';
    const repeats = chance(SHARES.repeats) && index > 0 ? random.integer(0, index - 1) : null;
    planned.push({
      index,
      tokens: Math.round(SHORTEST * (LONGEST / SHORTEST) ** random.next()),
      repeats: repeats === null ? null : (planned[repeats]?.repeats ?? repeats),
      way,
      leaveAfter: chance(SHARES.leaves) ? random.integer(1, MOST_EVENTS) : null,
      returns: chance(SHARES.returns),
      kill: index % TRANSFERS_PER_KILL === Math.floor(TRANSFERS_PER_KILL / 2),
      freezeMs: chance(SHARES.freezes) ? random.integer(100, LONGEST_FREEZE_MS) : null,
    });
  }
  if (count < LEAST_TRANSFERS_WITH_WARM_UP) return planned;
  return planned.map((one) => (one.index < WARM_UPS ? { ...one, ...WARM_UP } : one));
}
