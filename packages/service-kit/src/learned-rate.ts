/** Weight of the newest measurement in the moving average. */
const NEWEST = 0.3;

/** A rate that is learned from measurements: their exponentially weighted mean. */
export class LearnedRate {
  #perSecond: number | null = null;

  /** Units a second; null before the first measurement. */
  get perSecond(): number | null {
    return this.#perSecond;
  }

  /** Takes a measurement of `amount` units in `milliseconds`. Impossible ones are left out. */
  learn(amount: number, milliseconds: number): void {
    const measured = (amount / milliseconds) * 1_000;
    if (!(amount > 0) || !(milliseconds > 0) || !Number.isFinite(measured)) return;
    this.#perSecond = this.#perSecond === null ? measured : this.#perSecond + NEWEST * (measured - this.#perSecond);
  }
}
