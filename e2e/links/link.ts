/** A cable between two machines. */
export interface Link {
  readonly name: string;
  readonly bitsPerSecond: number;
  /** Milliseconds there and back that are added to the machine's own. */
  readonly roundTripMs: number;
  /** How long the cable is out when it is pulled in the midst of a transfer. */
  readonly cutMs: number;
  /** Nothing passes for a while, again and again. */
  readonly stalls: boolean;
  /** Also tried with a rate far below that of the prefill. */
  readonly starved: boolean;
}

/** In 0.2 ms two namespaces answer each other through a proxy by themselves: nothing is added on the first link. */
export const LINKS: readonly Link[] = [
  { name: '10g', bitsPerSecond: 10e9, roundTripMs: 0, cutMs: 500, stalls: false, starved: false },
  { name: '1g', bitsPerSecond: 1e9, roundTripMs: 2, cutMs: 500, stalls: false, starved: false },
  { name: '100m', bitsPerSecond: 100e6, roundTripMs: 40, cutMs: 500, stalls: true, starved: true },
  { name: 'cut', bitsPerSecond: 1e9, roundTripMs: 2, cutMs: 3_000, stalls: false, starved: false },
];

export function describeLink({ bitsPerSecond, roundTripMs, cutMs, stalls }: Link): string {
  const rate = bitsPerSecond >= 1e9 ? `${bitsPerSecond / 1e9} Gbit/s` : `${bitsPerSecond / 1e6} Mbit/s`;
  const delay = roundTripMs === 0 ? '0.2 ms' : `${roundTripMs} ms`;
  return `${rate}, ${delay}${stalls ? ', stalls' : ''}, cable cut for ${cutMs / 1_000} s`;
}
