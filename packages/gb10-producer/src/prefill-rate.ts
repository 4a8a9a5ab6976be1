/** Prefills shorter than this are mostly overhead and say little about the rate. */
const LEAST_TOKENS = 256;
/** Weight of the newest measurement. */
const NEWEST = 0.3;

/** Exponentially weighted mean of the measured prefill rate. */
export class PrefillRate {
  #tokensPerSecond = 0;

  /** 0 while nothing has been measured. */
  get tokensPerSecond(): number {
    return this.#tokensPerSecond;
  }

  measured(tokens: number, durationMs: number): void {
    if (tokens < LEAST_TOKENS || durationMs <= 0) return;
    const rate = (tokens / durationMs) * 1000;
    this.#tokensPerSecond = this.#tokensPerSecond === 0 ? rate : (1 - NEWEST) * this.#tokensPerSecond + NEWEST * rate;
  }
}
