/** Tokens over which a measurement's weight falls to 1/e: a prompt or two, so that a machine that slows down is noticed. */
const MEMORY_TOKENS = 16_384;
/** A measurement counts as at most this many times what was expected: the machine slept, or was stopped, meanwhile. */
const MOST_SURPRISE = 5;
/** Of a decoder before its first prefill. */
const ASSUMED_MS_PER_TOKEN = 2;
/** The spread of depths, in tokens, below which measurements say nothing about the slope. */
const LEAST_SPREAD_TOKENS = 64;

/**
 * What a token of this decoder's own prefill costs at which depth of the prompt: attention looks back over all tokens before,
 * so the cost of one grows by about the same for each. A straight line through the measurements, which are weighted by
 * their tokens and forgotten exponentially; never negative and never falling with depth.
 */
export class LocalPrefillRate {
  private readonly sums = { weight: 0, depth: 0, depthSquared: 0, cost: 0, depthCost: 0 };

  /** Milliseconds for rows [from, to). */
  predictMs(from: number, to: number): number {
    if (to <= from) return 0;
    const { base, slope } = this.line;
    return base * (to - from) + (slope * (to * to - from * from)) / 2;
  }

  /** Takes the time that rows [from, to) took. Impossible measurements are left out. */
  learn(from: number, to: number, milliseconds: number): void {
    const tokens = to - from;
    if (!(tokens > 0) || !(milliseconds > 0) || !Number.isFinite(milliseconds)) return;
    const { sums } = this;
    const known = sums.weight > 0;
    const cost = (known ? Math.min(milliseconds, MOST_SURPRISE * this.predictMs(from, to)) : milliseconds) / tokens;
    const depth = (from + to) / 2;
    const kept = Math.exp(-tokens / MEMORY_TOKENS);
    sums.weight = sums.weight * kept + tokens;
    sums.depth = sums.depth * kept + tokens * depth;
    sums.depthSquared = sums.depthSquared * kept + tokens * depth * depth;
    sums.cost = sums.cost * kept + tokens * cost;
    sums.depthCost = sums.depthCost * kept + tokens * depth * cost;
  }

  /** Milliseconds a token at depth 0, and how many more for each token of depth. */
  private get line(): { base: number; slope: number } {
    const { weight, depth, depthSquared, cost, depthCost } = this.sums;
    if (weight === 0) return { base: ASSUMED_MS_PER_TOKEN, slope: 0 };
    const meanDepth = depth / weight;
    const meanCost = cost / weight;
    const variance = depthSquared / weight - meanDepth * meanDepth;
    if (variance < LEAST_SPREAD_TOKENS ** 2) return { base: meanCost, slope: 0 };
    const slope = Math.max(0, (depthCost / weight - meanDepth * meanCost) / variance);
    const base = meanCost - slope * meanDepth;
    // Nothing costs less than nothing: the line through the origin that fits best.
    return base >= 0 ? { base, slope } : { base: 0, slope: depthCost / depthSquared };
  }
}
