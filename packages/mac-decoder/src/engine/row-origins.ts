interface Origin {
  readonly producerId: string;
  readonly start: number;
  readonly end: number;
}

/** Which rows of a sequence came from which producer, as node ids. All other rows were computed here. */
export class RowOrigins {
  /** In the order of their rows. */
  private origins: Origin[] = [];

  /** Every producer that rows are of, each once. */
  get producerIds(): string[] {
    return [...new Set(this.origins.map(({ producerId }) => producerId))];
  }

  /** Rows [start, end) are this producer's now, and the last ones that are there. */
  received(producerId: string, start: number, end: number): void {
    this.cut(start);
    this.origins.push({ producerId, start, end });
  }

  /** The rows from `position` on are gone; what comes there next is computed here unless it is said to be received. */
  cut(position: number): void {
    this.origins = this.origins
      .filter(({ start }) => start < position)
      .map((origin) => ({ ...origin, end: Math.min(origin.end, position) }));
  }

  /** First row that is of one of these producers; null when there is none. */
  firstRowOf(producerIds: readonly string[]): number | null {
    return this.origins.find(({ producerId }) => producerIds.includes(producerId))?.start ?? null;
  }

  isOfAny(producerIds: readonly string[]): boolean {
    return this.firstRowOf(producerIds) !== null;
  }
}
