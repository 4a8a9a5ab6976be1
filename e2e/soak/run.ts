import type { NeedleDocument } from '@muser/testing';
import { ask, type Outcome } from './ask.js';
import type { Sample } from './census.js';
import type { Planned } from './plan.js';
import type { Backend, Stand } from './stand.js';

const AT_ONCE = 3;
/** Shares of the transfers after which everything rests and is counted; the first is the warm-up. */
const CENSUS_AT = [0.1, 0.25, 0.5, 0.75, 1];

export interface Census {
  /** Transfers until then. */
  readonly transfers: number;
  readonly samples: Readonly<Record<string, Sample>>;
}

export interface SoakReport {
  readonly seed: number;
  readonly backend: Backend;
  readonly transfers: number;
  readonly outcomes: Readonly<Record<Outcome['end'], number>>;
  /** Answers by the way they went, and what made them fall back. */
  readonly ways: Readonly<Record<string, number>>;
  readonly fallbacks: Readonly<Record<string, number>>;
  /** Remote attempts that failed, also where another one completed the prefill. */
  readonly failedAttempts: Readonly<Record<string, number>>;
  /** Faults of connections that were drawn; not all came to happen. */
  readonly faults: Readonly<Record<string, number>>;
  readonly kills: number;
  /** Clients that left in the midst; some came back. */
  readonly departures: number;
  readonly kvBytes: number;
  readonly tokens: number;
  readonly reusedTokens: number;
  /** Transfers and sequences that still ran somewhere when everything should have rested, at any census. */
  readonly unsettled: number;
  readonly censuses: readonly Census[];
  readonly problems: readonly string[];
}

/** Runs the plan, a few at once, with a rest for each census. */
export async function soak(
  stand: Stand,
  plan: readonly Planned[],
  {
    seed,
    backend,
    say,
    documents,
  }: { seed: number; backend: Backend; say: (text: string) => void; documents: NeedleDocument[] },
): Promise<SoakReport> {
  const tally = new Tally(stand);
  const censuses: Census[] = [];
  let unsettled = 0;
  let done = 0;
  for (const share of CENSUS_AT) {
    const part = plan.slice(done, Math.max(done, Math.round(plan.length * share)));
    await stand.whole();
    await atOnce(AT_ONCE, part, async (planned) => {
      const needle = documents[planned.repeats ?? planned.index];
      if (needle === undefined) throw new Error(`transfer ${planned.index} has no document`);
      tally.add(planned, await ask(stand, planned, needle));
      if (tally.count % 20 === 0) say(`${tally.count} of ${plan.length} transfers: ${tally.summary}`);
    });
    done += part.length;
    unsettled += await stand.settle();
    censuses.push({ transfers: done, samples: await stand.census() });
  }
  return { seed, backend, transfers: plan.length, ...tally.report(), unsettled, censuses };
}

async function atOnce<T>(width: number, items: readonly T[], work: (item: T) => Promise<void>): Promise<void> {
  const rest = [...items];
  const worker = async (): Promise<void> => {
    for (let item = rest.shift(); item !== undefined; item = rest.shift()) await work(item);
  };
  await Promise.all(Array.from({ length: width }, worker));
}

/** Counts what came of the transfers. */
class Tally {
  count = 0;
  readonly #outcomes: Record<Outcome['end'], number> = {
    same: 0,
    found: 0,
    cancelled: 0,
    wrong: 0,
    unsettled: 0,
    error: 0,
  };
  readonly #ways: Record<string, number> = {};
  readonly #fallbacks: Record<string, number> = {};
  readonly #failedAttempts: Record<string, number> = {};
  readonly #problems: string[] = [];
  #departures = 0;
  #kvBytes = 0;
  #tokens = 0;
  #reusedTokens = 0;

  constructor(private readonly stand: Stand) {}

  get summary(): string {
    const { wrong, unsettled, error } = this.#outcomes;
    const ways = Object.entries(this.#ways).map(([way, count]) => `${count} ${way}`);
    return `${ways.join(', ')}; ${wrong} wrong, ${unsettled} unsettled, ${error} errors`;
  }

  add({ index, tokens, way }: Planned, { end, answer, left, problem }: Outcome): void {
    this.count += 1;
    this.#outcomes[end] += 1;
    if (left) this.#departures += 1;
    if (problem !== null) this.#problems.push(`transfer ${index} (${tokens} tokens, ${way}): ${end}: ${problem}`);
    if (answer === null) return;
    const { muser } = answer;
    increment(this.#ways, muser.prefill);
    if (muser.fallback !== null) increment(this.#fallbacks, muser.fallback.code);
    for (const { code } of muser.attempts) if (code !== null) increment(this.#failedAttempts, code);
    this.#kvBytes += muser.kvBytes;
    this.#tokens += muser.promptTokens;
    this.#reusedTokens += muser.cachedTokens;
  }

  report(): Omit<SoakReport, 'seed' | 'backend' | 'transfers' | 'unsettled' | 'censuses'> {
    return {
      outcomes: this.#outcomes,
      ways: this.#ways,
      fallbacks: this.#fallbacks,
      failedAttempts: this.#failedAttempts,
      faults: this.stand.faults.drawn,
      kills: this.stand.kills,
      departures: this.#departures,
      kvBytes: this.#kvBytes,
      tokens: this.#tokens,
      reusedTokens: this.#reusedTokens,
      problems: this.#problems,
    };
  }
}

function increment(counts: Record<string, number>, key: string): void {
  counts[key] = (counts[key] ?? 0) + 1;
}
