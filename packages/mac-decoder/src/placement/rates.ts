import { LearnedRate } from '@muser/service-kit';
import { LocalPrefillRate } from './local-rate.js';

/** What has been learned of a producer may have changed when it is this old. */
const STALE_MS = 60_000;
/** Weight of the newest measurement in the mean of handshakes. */
const NEWEST = 0.3;

/** How one attempt went, as far as it tells of the producer's rates. */
export interface AttemptSample {
  /** From the call to Begin, or to its end where none came; null when neither says anything. */
  readonly handshakeMs: number | null;
  /** Bytes and the time in which they came one right after the other. */
  readonly link: { readonly bytes: number; readonly milliseconds: number };
  /** Tokens that the producer computed, and in which time; null when unknown. */
  readonly prefill: { readonly tokens: number; readonly milliseconds: number } | null;
  /** It was left because it was too slow: what was believed of its prefill before was wrong. */
  readonly tooSlow: boolean;
}

/** What has been learned of one producer and the way to it. */
export class ProducerRates {
  private computed = new LearnedRate();
  private readonly sent = new LearnedRate();
  private handshake: number | null = null;
  private triedAt: number | null = null;

  constructor(private readonly now: () => number) {}

  /** Tokens a second of its prefill; null before the first measurement, as everywhere here. */
  get prefillTokensPerSecond(): number | null {
    return this.computed.perSecond;
  }

  /** Bytes a second that arrive and verify while bytes are coming. */
  get linkBytesPerSecond(): number | null {
    return this.sent.perSecond;
  }

  /** Milliseconds from request to Begin. */
  get handshakeMs(): number | null {
    return this.handshake;
  }

  /** Whether nobody has tried it for so long that a slow producer, or a slow link, may have become a fast one. */
  get stale(): boolean {
    return this.triedAt !== null && this.now() - this.triedAt > STALE_MS;
  }

  /** A request goes to the producer: what it will tell is awaited by those that come after it. */
  begin(): void {
    this.triedAt = this.now();
  }

  learn({ handshakeMs, link, prefill, tooSlow }: AttemptSample): void {
    if (tooSlow) this.computed = new LearnedRate();
    if (handshakeMs !== null) {
      const known = this.handshake ?? handshakeMs;
      this.handshake = known + NEWEST * (handshakeMs - known);
    }
    this.sent.learn(link.bytes, link.milliseconds);
    if (prefill !== null) this.computed.learn(prefill.tokens, prefill.milliseconds);
  }
}

/** Everything that placement has learned. */
export class MeasuredRates {
  /** This decoder's own prefill. */
  readonly local = new LocalPrefillRate();
  private readonly producers = new Map<string, ProducerRates>();

  /** `now`: milliseconds of a monotonic clock. */
  constructor(private readonly now: () => number = () => performance.now()) {}

  of(nodeId: string): ProducerRates {
    let rates = this.producers.get(nodeId);
    if (rates === undefined) {
      rates = new ProducerRates(this.now);
      this.producers.set(nodeId, rates);
    }
    return rates;
  }
}
