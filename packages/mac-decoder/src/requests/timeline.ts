/** Moments of a request in their order. */
export const MOMENTS = [
  'received',
  'tokenized',
  'placed',
  'accepted',
  'prefillStart',
  'firstByte',
  'prefillEnd',
  'lastByte',
  'sealed',
  'installed',
  'lastTokenEvaluated',
  'firstToken',
  'done',
] as const;
export type Moment = (typeof MOMENTS)[number];

/** When what happened in one request. Moments that were not reached are absent. */
export class Timeline {
  readonly receivedAt: number;
  private readonly moments = new Map<Moment, number>();

  constructor(private readonly clock: () => number = () => performance.now()) {
    this.receivedAt = clock();
    this.moments.set('received', this.receivedAt);
  }

  /** The clock of all moments: monotonic, milliseconds. */
  readonly now = (): number => this.clock();

  /** Sets a moment, again if it was set before: the last time counts. */
  mark(moment: Moment, at: number = this.clock()): void {
    this.moments.set(moment, at);
  }

  /** Sets a moment unless it is set: the first time counts. */
  markFirst(moment: Moment, at: number = this.clock()): void {
    if (!this.moments.has(moment)) this.moments.set(moment, at);
  }

  /** Milliseconds from receipt; null when not reached. */
  since(moment: Moment): number | null {
    const at = this.moments.get(moment);
    return at === undefined ? null : round(at - this.receivedAt);
  }

  /** All moments in their order, in milliseconds since receipt. */
  toJSON(): Partial<Record<Moment, number>> {
    return Object.fromEntries(
      MOMENTS.flatMap((moment) => {
        const milliseconds = this.since(moment);
        return milliseconds === null ? [] : [[moment, milliseconds]];
      }),
    );
  }
}

function round(milliseconds: number): number {
  return Math.round(milliseconds * 100) / 100;
}
