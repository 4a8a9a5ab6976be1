/** Weight of the newest measurement in a moving average. */
const NEWEST = 0.3;

/** A rate that is learned from measurements, exponentially weighted. */
export class LearnedRate {
  private value: number | null = null;

  /** Units a second; null before the first measurement. */
  get perSecond(): number | null {
    return this.value;
  }

  /** Takes a measurement of `amount` units in `milliseconds`. Impossible ones are left out. */
  learn(amount: number, milliseconds: number): void {
    if (!(amount > 0) || !(milliseconds > 0)) return;
    const measured = (amount / milliseconds) * 1_000;
    this.value = this.value === null ? measured : this.value + NEWEST * (measured - this.value);
  }
}

/** What has been learned of one producer and the way to it. */
export interface ProducerRates {
  /** Tokens a second of its prefill, queue not included. */
  readonly prefill: LearnedRate;
  /** Bytes a second that arrive and verify while bytes are coming. */
  readonly link: LearnedRate;
  /** Round trips from request to Begin, a second. */
  readonly handshakes: LearnedRate;
}

/** Everything that placement has learned. */
export class MeasuredRates {
  /** Tokens a second of this decoder's own prefill. */
  readonly local = new LearnedRate();
  private readonly producers = new Map<string, ProducerRates>();

  of(nodeId: string): ProducerRates {
    let rates = this.producers.get(nodeId);
    if (rates === undefined) {
      rates = { prefill: new LearnedRate(), link: new LearnedRate(), handshakes: new LearnedRate() };
      this.producers.set(nodeId, rates);
    }
    return rates;
  }
}
