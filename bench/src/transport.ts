import { availableParallelism, loadavg } from 'node:os';
import type { Engine, Model } from '@muser/metal';
import { ShapedLink } from './shaped-link.js';
import { Bed, openEngine } from './transport-bed.js';
import { measurePaced, type PacedFigures, type PacedScenario } from './transport-paced.js';
import { measureRates, RATE_PROMPT_TOKENS, type WayFigures } from './transport-rate.js';
import { chunksOf, payloadBytesOf } from './transport-scenario.js';

const AGAINST_RAW_GOAL = 0.85;
const AGAINST_UNHASHED_GOAL = 0.8;
/** With fewer, both ends and the kernel want the cores that hashing wants. */
const CORES_FOR_UNHASHED = 8;
const SHARE_GOAL = 0.01;

const LONG_PROMPT = 32_768;
const PACED: readonly PacedScenario[] = [
  { promptTokens: LONG_PROMPT, tokensPerSecond: 3_000, linkBitsPerSecond: 10e9, rounds: 3 },
  { promptTokens: LONG_PROMPT, tokensPerSecond: 1_000, linkBitsPerSecond: 10e9, rounds: 2 },
  { promptTokens: 4_096, tokensPerSecond: 1_000, linkBitsPerSecond: 1e9, rounds: 3 },
];

export interface Goal {
  name: string;
  measured: number;
  goal: number;
  /** null: this machine cannot show it. */
  met: boolean | null;
}

export interface TransportFigures {
  payloadBytes: number;
  /** Average load over a minute before and after, the benchmark's own included afterwards. */
  load: { before: number; after: number };
  ways: WayFigures[];
  link: string;
  paced: PacedFigures[];
  goals: Goal[];
}

/**
 * What a hand-off's rows cost on their way: verified and installed into a real engine's cells, against raw TLS 1.3 sockets;
 * and what of it a request still waits for behind a prefill. See bench/README.md.
 */
export async function transportBenchmark(): Promise<TransportFigures> {
  const before = loadavg()[0] ?? 0;
  const { model, engine } = await openEngine(LONG_PROMPT);
  try {
    const geometry = { ...model.info.geometry, vocabularySize: model.info.vocabularySize };
    const payloadBytes = payloadBytesOf(chunksOf(geometry, { promptTokens: RATE_PROMPT_TOKENS, resumePoints: false }));
    const ways = await onLoopback(model, engine, payloadBytes);
    const { link, paced } = await overLinks(model, engine);
    const load = { before, after: loadavg()[0] ?? 0 };
    return { payloadBytes, load, ways, link, paced, goals: goalsOf(ways, paced) };
  } finally {
    await engine.close();
    model.close();
  }
}

async function onLoopback(model: Model, engine: Engine, payloadBytes: number): Promise<WayFigures[]> {
  const bed = await Bed.start(model, engine, '127.0.0.1', []);
  try {
    return await measureRates(bed, engine, payloadBytes);
  } finally {
    await bed.close();
  }
}

async function overLinks(model: Model, engine: Engine): Promise<{ link: string; paced: PacedFigures[] }> {
  let link: ShapedLink;
  try {
    link = await ShapedLink.create();
  } catch (error) {
    return { link: `none: ${error instanceof Error ? error.message.trim() : String(error)}`, paced: [] };
  }
  const geometry = { ...model.info.geometry, vocabularySize: model.info.vocabularySize };
  try {
    const bed = await Bed.start(model, engine, link.farAddress, link.farCommand);
    try {
      const paced: PacedFigures[] = [];
      for (const scenario of PACED) {
        await link.setRate(scenario.linkBitsPerSecond);
        const lastChunk = chunksOf(geometry, { ...scenario, resumePoints: true }).slice(-1);
        paced.push(await measurePaced(bed, engine, scenario, payloadBytesOf(lastChunk)));
      }
      return { link: 'veth pair between two network namespaces, tbf at both ends', paced };
    } finally {
      await bed.close();
    }
  } finally {
    await link.remove();
  }
}

function goalsOf(ways: readonly WayFigures[], paced: readonly PacedFigures[]): Goal[] {
  const installed = ways.find(({ way }) => way === 'installed');
  const rate = (name: string, measured: number, goal: number, canShow: boolean): Goal => {
    return { name, measured, goal, met: canShow ? measured >= goal : null };
  };
  const manyCores = availableParallelism() >= CORES_FOR_UNHASHED;
  return [
    rate('installed against raw', installed?.againstRaw ?? 0, AGAINST_RAW_GOAL, true),
    rate('installed against raw, not hashed', installed?.againstUnhashed ?? 0, AGAINST_UNHASHED_GOAL, manyCores),
    ...paced.map((one) => ({
      name: `tail in ms, ${describe(one)}`,
      measured: one.tailMs,
      goal: one.tailGoalMs,
      met: one.tailMs <= one.tailGoalMs,
    })),
    ...paced
      .filter(({ promptTokens }) => promptTokens === LONG_PROMPT)
      .map((one) => ({
        name: `transfer's share of TTFT, ${describe(one)}`,
        measured: one.transferShare,
        goal: SHARE_GOAL,
        met: one.transferShare <= SHARE_GOAL,
      })),
  ];
}

function describe({ promptTokens, tokensPerSecond, linkBitsPerSecond }: PacedScenario): string {
  return `${promptTokens} tokens at ${tokensPerSecond}/s over ${linkBitsPerSecond / 1e9} Gbit/s`;
}
