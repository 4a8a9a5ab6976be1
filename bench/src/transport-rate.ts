import type { Engine } from '@muser/metal';
import { hashOnPool, hashPayload } from '@muser/transport';
import { figure, median } from './statistics.js';
import type { Bed, Measured, Side } from './transport-bed.js';
import type { Wanted } from './transport-reader.js';

const OWN_HASH = hashPayload === hashOnPool ? 'pool' : 'inline';

/** What is compared; `installed` is what a decoder does. */
const WAYS = ['raw', 'raw, not hashed', 'verified', 'installed'] as const;
export type Way = (typeof WAYS)[number];

export interface WayFigures {
  way: Way;
  gigabitPerSecond: number;
  /** Rate by that of the raw socket that hashes, and of the one that does not. */
  againstRaw: number;
  againstUnhashed: number;
  cpuSecondsPerGigabyte: { sender: number; reader: number };
  /** Resident memory of the whole process at its highest, and how much more that is than before the transfer. */
  peakMiB: { sender: number; reader: number };
  grownMiB: { sender: number; reader: number };
}

export interface RatePlan {
  promptTokens: number;
  /** That count, after one that warms both ends up. */
  rounds: number;
}

/** Every chunk is there at once and only the last window's rows travel: how fast can it be? In turns, A B C D D C B A. */
export async function measureRates(
  bed: Bed,
  engine: Engine,
  { promptTokens, rounds }: RatePlan,
  payloadBytes: number,
): Promise<WayFigures[]> {
  const measured = new Map<Way, Measured[]>(WAYS.map((way) => [way, []]));
  for (let round = 0; round <= rounds; round += 1) {
    for (const way of [...WAYS, ...WAYS.toReversed()]) {
      const one = await measureWay(bed, engine, promptTokens, way);
      if (round > 0) measured.get(way)?.push(one);
    }
  }
  const seconds = (way: Way): number =>
    median((measured.get(way) ?? []).map(({ milliseconds }) => milliseconds)) / 1000;
  return WAYS.map((way) => {
    const counted = measured.get(way) ?? [];
    const middle = (of: (side: Side) => number): { sender: number; reader: number } => ({
      sender: figure(median(counted.map(({ sender }) => of(sender)))),
      reader: figure(median(counted.map(({ reader }) => of(reader)))),
    });
    return {
      way,
      gigabitPerSecond: figure((payloadBytes * 8) / 1e9 / seconds(way)),
      againstRaw: figure(seconds('raw') / seconds(way)),
      againstUnhashed: figure(seconds('raw, not hashed') / seconds(way)),
      cpuSecondsPerGigabyte: middle(({ cpuSeconds }) => (cpuSeconds * 1e9) / payloadBytes),
      peakMiB: middle(({ peakRssBytes }) => peakRssBytes / 2 ** 20),
      grownMiB: middle(({ peakRssBytes, rssBytes }) => (peakRssBytes - rssBytes) / 2 ** 20),
    };
  });
}

async function measureWay(bed: Bed, engine: Engine, promptTokens: number, way: Way): Promise<Measured> {
  const hash = way === 'raw' ? 'inline' : way === 'raw, not hashed' ? 'none' : OWN_HASH;
  const wanted: Wanted = { promptTokens, resumePoints: false, tokensPerSecond: null, hash };
  if (way === 'verified') return bed.measure(() => bed.reader.verify(wanted));
  if (way !== 'installed') {
    const socket = await bed.reader.connectRaw();
    return bed.measure(() => bed.reader.raw(wanted, socket));
  }
  const sequence = engine.open(promptTokens);
  try {
    return await bed.measure(() => bed.reader.install(wanted, sequence));
  } finally {
    await sequence.dispose();
  }
}
