import type { Engine } from '@muser/metal';
import { hashOnPool, hashPayload } from '@muser/transport';
import { figure, median } from './statistics.js';
import type { Bed } from './transport-bed.js';
import { chunksOf, CHUNK_TOKENS, payloadBytesOf } from './transport-scenario.js';
import type { Geometry } from '@muser/protocol';

const TAIL_FACTOR = 1.15;
const TAIL_PLUS_MS = 10;
const RAW_PROMPT_TOKENS = 8_192;

export interface PacedScenario {
  promptTokens: number;
  /** Of the prefill that is simulated. */
  tokensPerSecond: number;
  /** null: not limited. */
  linkBitsPerSecond: number | null;
  rounds: number;
}

export interface PacedFigures extends PacedScenario {
  /** Of a raw TLS socket that hashes nothing, just before: what the link and the two processes can carry at most. */
  rawGigabitPerSecond: number;
  /** From asking until the last token is evaluated here. */
  ttftMs: number;
  /** Time that is neither prefill there nor evaluation here, and its share of the whole. */
  transferMs: number;
  transferShare: number;
  /** From the last chunk being computed there until its rows lie in the cells here. */
  tailMs: number;
  /** null without a link of a known rate. */
  tailGoalMs: number | null;
}

type Run = Pick<PacedFigures, 'ttftMs' | 'transferMs' | 'transferShare' | 'tailMs'>;

/** Chunks leave as they are "computed", with their window rows; the reader installs them and evaluates the last token. */
export async function measurePaced(
  bed: Bed,
  engine: Engine,
  scenario: PacedScenario,
  geometry: Geometry,
): Promise<PacedFigures> {
  const rawGigabitPerSecond = await rawRate(bed, geometry);
  const lastChunkBytes = payloadBytesOf(chunksOf(geometry, { ...scenario, resumePoints: true }).slice(-1));
  const runs: Run[] = [];
  for (let round = 0; round < scenario.rounds; round += 1) runs.push(await runOnce(bed, engine, scenario));
  const middle = (of: keyof Run): number => median(runs.map((run) => run[of]));
  const { linkBitsPerSecond } = scenario;
  const goalOf = (bitsPerSecond: number): number =>
    figure((TAIL_FACTOR * lastChunkBytes * 8 * 1000) / bitsPerSecond + TAIL_PLUS_MS);
  return {
    ...scenario,
    rawGigabitPerSecond,
    ttftMs: figure(middle('ttftMs')),
    transferMs: figure(middle('transferMs')),
    transferShare: figure(middle('transferShare')),
    tailMs: figure(middle('tailMs')),
    tailGoalMs: linkBitsPerSecond === null ? null : goalOf(linkBitsPerSecond),
  };
}

async function rawRate(bed: Bed, geometry: Geometry): Promise<number> {
  const wanted = { promptTokens: RAW_PROMPT_TOKENS, resumePoints: false, tokensPerSecond: null, hash: 'none' } as const;
  const socket = await bed.reader.connectRaw();
  const { milliseconds } = await bed.measure(() => bed.reader.raw(wanted, socket));
  return figure((payloadBytesOf(chunksOf(geometry, wanted)) * 8) / 1e6 / milliseconds);
}

async function runOnce(bed: Bed, engine: Engine, { promptTokens, tokensPerSecond }: PacedScenario): Promise<Run> {
  const hash = hashPayload === hashOnPool ? 'pool' : 'inline';
  const sequence = engine.open(promptTokens);
  let installedNs = 0n;
  let evaluatedNs = 0n;
  const askedNs = process.hrtime.bigint();
  const { sender } = await bed.measure(async () => {
    await bed.reader.install({ promptTokens, resumePoints: true, tokensPerSecond, hash }, sequence);
    installedNs = process.hrtime.bigint();
    await sequence.evaluate(Int32Array.of(CHUNK_TOKENS));
    evaluatedNs = process.hrtime.bigint();
  });
  await sequence.dispose();
  const milliseconds = (from: bigint, to: bigint): number => Number(to - from) / 1e6;
  const ttftMs = milliseconds(askedNs, evaluatedNs);
  const prefillMs = milliseconds(sender.prefillStartedNs, sender.lastChunkNs);
  const transferMs = milliseconds(askedNs, installedNs) - prefillMs;
  return {
    ttftMs,
    transferMs,
    transferShare: transferMs / ttftMs,
    tailMs: milliseconds(sender.lastChunkNs, installedNs),
  };
}
