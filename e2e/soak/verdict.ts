import type { Census, SoakReport } from './run.js';

/** Descriptors that may come and go: a connection that a fault has left half open lives on for a minute. */
const LEAST_LEAKED_DESCRIPTORS = 12;
const MIB = 1 << 20;

/** The change of one figure of one process between two rests, per 100 transfers. */
export interface Slope {
  readonly name: string;
  readonly residentMib: number;
  readonly heapMib: number;
  readonly externalMib: number;
  readonly descriptors: number;
}

/** Why a soak has failed, for people; empty when it has not. */
export function failures(report: SoakReport): string[] {
  const { outcomes, unsettled } = report;
  const wrong: [number, string][] = [
    [outcomes.wrong, 'wrong answers'],
    [outcomes.unsettled, 'requests without an end'],
    [outcomes.error, 'requests that ended with an error'],
    [unsettled, 'transfers or sequences that were left behind'],
  ];
  const found = wrong.filter(([count]) => count > 0).map(([count, what]) => `${count} ${what}`);
  for (const name of longLived(report.censuses)) {
    if (leaksDescriptors(report.censuses, name)) found.push(`the descriptors of ${name} grow at every census`);
  }
  return found;
}

/** After the warm-up, by the line that fits best. Only processes that lived as long as the soak have one. */
export function slopes({ censuses }: SoakReport): Slope[] {
  const warm = censuses.slice(1);
  return longLived(censuses).map((name) => {
    const of = (figure: (census: Census) => number): number => 100 * slope(warm, figure);
    return {
      name,
      residentMib: of(({ samples }) => (samples[name]?.residentBytes ?? 0) / MIB),
      heapMib: of(({ samples }) => (samples[name]?.node.heapUsed ?? 0) / MIB),
      externalMib: of(({ samples }) => (samples[name]?.node.external ?? 0) / MIB),
      descriptors: of(({ samples }) => samples[name]?.descriptors ?? 0),
    };
  });
}

function longLived(censuses: readonly Census[]): string[] {
  const [first] = censuses;
  return Object.entries(first?.samples ?? {}).flatMap(([name, { pid }]) =>
    censuses.every(({ samples }) => samples[name]?.pid === pid) ? name : [],
  );
}

/** It grew from each census to the next, and by more than what comes and goes. */
function leaksDescriptors(censuses: readonly Census[], name: string): boolean {
  const counts = censuses.map(({ samples }) => samples[name]?.descriptors ?? 0);
  const growsAlways = counts.every((count, index) => index === 0 || count > (counts[index - 1] ?? 0));
  return growsAlways && (counts.at(-1) ?? 0) - (counts[0] ?? 0) >= LEAST_LEAKED_DESCRIPTORS;
}

/** Least squares, per transfer. */
function slope(censuses: readonly Census[], figure: (census: Census) => number): number {
  const points = censuses.map((census) => ({ x: census.transfers, y: figure(census) }));
  const mean = (values: readonly number[]): number => values.reduce((sum, value) => sum + value, 0) / values.length;
  const [meanX, meanY] = [mean(points.map(({ x }) => x)), mean(points.map(({ y }) => y))];
  const spread = points.reduce((sum, { x }) => sum + (x - meanX) ** 2, 0);
  const common = points.reduce((sum, { x, y }) => sum + (x - meanX) * (y - meanY), 0);
  return spread === 0 ? 0 : common / spread;
}
