import { describe, expect, test } from 'vitest';
import { LocalPrefillRate } from '../../src/placement/local-rate.js';

const CHUNK = 512;

/** Lets the rate see a prompt whose tokens cost `base + slope * depth` milliseconds each. */
function prefill(rate: LocalPrefillRate, tokens: number, base: number, slope: number): void {
  for (let from = 0; from < tokens; from += CHUNK) {
    const to = Math.min(tokens, from + CHUNK);
    rate.learn(from, to, costOf(from, to, base, slope));
  }
}

const costOf = (from: number, to: number, base: number, slope: number): number =>
  base * (to - from) + (slope * (to * to - from * from)) / 2;

describe('the rate of local prefill by depth', () => {
  test('is the line that the measurements lie on, at depths that were never measured, too', () => {
    const rate = new LocalPrefillRate();
    prefill(rate, 8_192, 1.5, 0.0004);
    for (const [from, to] of [
      [0, 512],
      [0, 32_768],
      [20_000, 30_000],
    ] as const) {
      expect(rate.predictMs(from, to)).toBeCloseTo(costOf(from, to, 1.5, 0.0004), 3);
    }
  });

  test('is an integral: parts add up to the whole, and nothing costs nothing', () => {
    const rate = new LocalPrefillRate();
    prefill(rate, 4_096, 2, 0.001);
    expect(rate.predictMs(0, 700) + rate.predictMs(700, 5_000)).toBeCloseTo(rate.predictMs(0, 5_000), 6);
    expect(rate.predictMs(900, 900)).toBe(0);
  });

  test('is flat while only one depth is known', () => {
    const rate = new LocalPrefillRate();
    rate.learn(512, 1_024, 1_024);
    rate.learn(512, 1_024, 1_024);
    expect(rate.predictMs(0, 1_000)).toBeCloseTo(2_000, 6);
    expect(rate.predictMs(30_000, 31_000)).toBeCloseTo(2_000, 6);
  });

  test('follows a machine that became three times slower within two prompts', () => {
    const rate = new LocalPrefillRate();
    for (let count = 0; count < 10; count++) prefill(rate, 8_192, 1, 0.0001);
    const before = rate.predictMs(0, 8_192);
    for (let count = 0; count < 5; count++) prefill(rate, 8_192, 3, 0.0003);
    expect(rate.predictMs(0, 8_192) / before).toBeGreaterThan(2.6);
    expect(rate.predictMs(0, 8_192) / before).toBeLessThanOrEqual(3.001);
  });

  test('is never negative and never falls with depth, whatever was measured', () => {
    const falling = new LocalPrefillRate();
    prefill(falling, 4_096, 5, -0.001);
    const steep = new LocalPrefillRate();
    steep.learn(0, 512, 1);
    steep.learn(8_000, 8_512, 500_000);
    for (const rate of [falling, steep]) {
      let last = 0;
      for (let from = 0; from < 40_000; from += 1_000) {
        const cost = rate.predictMs(from, from + 1_000);
        expect(cost).toBeGreaterThanOrEqual(last);
        last = cost;
      }
    }
  });

  test('is not thrown off by one step in which the machine slept', () => {
    const rate = new LocalPrefillRate();
    prefill(rate, 8_192, 1, 0);
    rate.learn(0, 512, 3_600_000);
    expect(rate.predictMs(0, 8_192)).toBeLessThan(2 * 8_192);
  });

  test.each([
    [10, 10, 5],
    [20, 10, 5],
    [0, 10, 0],
    [0, 10, -1],
    [0, 10, Infinity],
    [0, 10, NaN],
  ])('leaves an impossible measurement out: rows [%d, %d) in %d ms', (from, to, milliseconds) => {
    const rate = new LocalPrefillRate();
    rate.learn(0, 100, 300);
    rate.learn(from, to, milliseconds);
    expect(rate.predictMs(0, 100)).toBeCloseTo(300, 6);
  });
});
