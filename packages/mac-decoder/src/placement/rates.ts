import { LearnedRate } from '@muser/service-kit';

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
