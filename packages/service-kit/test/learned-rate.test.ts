import { describe, expect, it } from 'vitest';
import { LearnedRate } from '../src/index.js';

describe('LearnedRate', () => {
  it('is unknown before the first measurement, then moves towards the newest one', () => {
    const rate = new LearnedRate();
    expect(rate.perSecond).toBeNull();
    rate.learn(1_000, 1_000);
    expect(rate.perSecond).toBe(1_000);
    rate.learn(2_000, 1_000);
    expect(rate.perSecond).toBe(1_300);
  });

  it.each([
    [0, 10],
    [10, 0],
    [-1, 10],
    [10, -1],
    [Number.NaN, 10],
    [10, Number.NaN],
    [Number.MAX_VALUE, Number.MIN_VALUE],
  ])('leaves %d units in %d ms out', (amount, milliseconds) => {
    const rate = new LearnedRate();
    rate.learn(100, 1_000);
    rate.learn(amount, milliseconds);
    expect(rate.perSecond).toBe(100);
  });
});
