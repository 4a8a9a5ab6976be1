import { availableParallelism, loadavg } from 'node:os';
import type { Engine, Model } from '@muser/metal';
import { ShapedLink } from './shaped-link.js';
import { Bed, geometryOf, openEngine } from './transport-bed.js';
import { measurePaced, type PacedFigures, type PacedScenario } from './transport-paced.js';
import { measureRates, type RatePlan, type WayFigures } from './transport-rate.js';
import { chunksOf, payloadBytesOf } from './transport-scenario.js';

const AGAINST_RAW_GOAL = 0.85;
const AGAINST_UNHASHED_GOAL = 0.8;
/** With fewer, both ends and the kernel want the cores that hashing wants. */
const CORES_FOR_UNHASHED = 8;
const SHARE_GOAL = 0.01;

const RATES: RatePlan = { promptTokens: 8_192, rounds: 4 };
const QUICK_RATES: RatePlan = { promptTokens: 4_096, rounds: 1 };

const LONG_PROMPT = 32_768;
const PACED: readonly PacedScenario[] = [
  { promptTokens: LONG_PROMPT, tokensPerSecond: 3_000, linkBitsPerSecond: 10e9, rounds: 3 },
  { promptTokens: LONG_PROMPT, tokensPerSecond: 1_000, linkBitsPerSecond: 10e9, rounds: 2 },
  { promptTokens: 4_096, tokensPerSecond: 1_000, linkBitsPerSecond: 1e9, rounds: 3 },
];
const QUICK_PACED: readonly PacedScenario[] = PACED.map((one) => ({ ...one, promptTokens: 4_096, rounds: 1 }));

export interface Goal {
  name: string;
  measured: number;
  goal: number;
  /** null: this machine cannot show it. */
  met: boolean | null;
}

interface Load {
  /** Average over a minute before and after, the benchmark's own included afterwards. */
  load: { before: number; after: number };
}

export interface RateFigures extends Load, RatePlan {
  payloadBytes: number;
  ways: WayFigures[];
  goals: Goal[];
}

export interface LinkFigures extends Load {
  /** How it is shaped, or why it is not. */
  link: string;
  paced: PacedFigures[];
  goals: Goal[];
}

/** What rows cost on their way: verified, and installed into a real engine's cells, against raw TLS 1.3 sockets. */
export async function ratesBenchmark(quick: boolean): Promise<RateFigures> {
  const plan = quick ? QUICK_RATES : RATES;
  const before = currentLoad();
  return withEngine(plan.promptTokens, async (model, engine) => {
    const payloadBytes = payloadBytesOf(chunksOf(geometryOf(model), { ...plan, resumePoints: false }));
    const ways = await withBed(model, engine, LOOPBACK, (bed) => measureRates(bed, engine, plan, payloadBytes));
    return { ...plan, payloadBytes, load: { before, after: currentLoad() }, ways, goals: rateGoals(ways) };
  });
}

/** What a request still waits for behind a prefill. */
export async function linkBenchmark(quick: boolean): Promise<LinkFigures> {
  const scenarios = quick ? QUICK_PACED : PACED;
  const before = currentLoad();
  const longest = Math.max(...scenarios.map(({ promptTokens }) => promptTokens));
  return withEngine(longest, async (model, engine) => {
    const { link, paced } = await overLink(model, engine, scenarios);
    return { load: { before, after: currentLoad() }, link, paced, goals: linkGoals(paced) };
  });
}

const currentLoad = (): number => loadavg()[0] ?? 0;

async function withEngine<T>(tokens: number, use: (model: Model, engine: Engine) => Promise<T>): Promise<T> {
  const { model, engine } = await openEngine(tokens);
  try {
    return await use(model, engine);
  } finally {
    await engine.close();
    model.close();
  }
}

interface Place {
  host: string;
  command: string[];
}

const LOOPBACK: Place = { host: '127.0.0.1', command: [] };

async function withBed<T>(model: Model, engine: Engine, place: Place, use: (bed: Bed) => Promise<T>): Promise<T> {
  const bed = await Bed.start(model, engine, place.host, place.command);
  try {
    return await use(bed);
  } finally {
    await bed.close();
  }
}

/** Where no link can be shaped, loopback shows at least what is not the link's. */
async function overLink(
  model: Model,
  engine: Engine,
  scenarios: readonly PacedScenario[],
): Promise<Pick<LinkFigures, 'link' | 'paced'>> {
  const link = await ShapedLink.create().catch((error: Error) => error.message);
  if (typeof link === 'string') {
    const unshaped = scenarios.slice(0, 2).map((one) => ({ ...one, linkBitsPerSecond: null }));
    const paced = await withBed(model, engine, LOOPBACK, (bed) => measureAll(bed, model, engine, unshaped, null));
    return { link: `loopback, not shaped, because of ${link}`, paced };
  }
  try {
    const place = { host: link.farAddress, command: link.farCommand };
    const paced = await withBed(model, engine, place, (bed) => measureAll(bed, model, engine, scenarios, link));
    return { link: 'veth pair between two network namespaces, tbf at both ends', paced };
  } finally {
    await link.remove();
  }
}

async function measureAll(
  bed: Bed,
  model: Model,
  engine: Engine,
  scenarios: readonly PacedScenario[],
  link: ShapedLink | null,
): Promise<PacedFigures[]> {
  const paced: PacedFigures[] = [];
  for (const scenario of scenarios) {
    if (scenario.linkBitsPerSecond !== null) await link?.setRate(scenario.linkBitsPerSecond);
    paced.push(await measurePaced(bed, engine, scenario, geometryOf(model)));
  }
  return paced;
}

function rateGoals(ways: readonly WayFigures[]): Goal[] {
  const installed = ways.find(({ way }) => way === 'installed');
  const goalOf = (name: string, measured: number, goal: number, canShow: boolean): Goal => {
    return { name, measured, goal, met: canShow ? measured >= goal : null };
  };
  const manyCores = availableParallelism() >= CORES_FOR_UNHASHED;
  return [
    goalOf('installed against raw', installed?.againstRaw ?? 0, AGAINST_RAW_GOAL, true),
    goalOf('installed against raw, not hashed', installed?.againstUnhashed ?? 0, AGAINST_UNHASHED_GOAL, manyCores),
  ];
}

/** None without a link that has the rate that they are stated for. */
function linkGoals(paced: readonly PacedFigures[]): Goal[] {
  const atMost = (name: string, one: PacedFigures, measured: number, goal: number): Goal => {
    return { name: `${name}, ${describe(one)}`, measured, goal, met: measured <= goal };
  };
  const tails = paced.map((one) =>
    one.tailGoalMs === null ? [] : [atMost('tail in ms', one, one.tailMs, one.tailGoalMs)],
  );
  const shares = paced
    .filter(({ promptTokens, tailGoalMs }) => promptTokens === LONG_PROMPT && tailGoalMs !== null)
    .map((one) => atMost("transfer's share of TTFT", one, one.transferShare, SHARE_GOAL));
  return [...tails.flat(), ...shares];
}

function describe({ promptTokens, tokensPerSecond, linkBitsPerSecond }: PacedScenario): string {
  return `${promptTokens} tokens at ${tokensPerSecond}/s over ${(linkBitsPerSecond ?? 0) / 1e9} Gbit/s`;
}
