import { Random } from '@muser/testing';
import { afterEach, describe, expect, test, vi } from 'vitest';
import { Pace } from '../../src/placement/pace.js';
import { PaceTimer } from '../../src/requests/pace-timer.js';

const SEED = 20_261_201;
const ROUNDS = 2_000;

/** Local prefill of rows [from, to) that takes `ms` a token, and more at depth. */
const localAt =
  (ms: number, slope = 0) =>
  (from: number, to: number): number =>
    ms * (to - from) + (slope * (to * to - from * from)) / 2;

describe('when a remote way is left', () => {
  const pace = new Pace({ localMs: localAt(1), promptTokens: 10_000, heldTokens: 0, placedAt: 5_000 });

  test('is the last moment from which local prefill still ends in time', () => {
    // 10 s alone; 11.2 s at the latest, less the margin for leaving.
    expect(pace.leaveAt(0)).toBe(5_000 + 1_200 - 30);
    expect(pace.leaveAt(4_000)).toBe(5_000 + 5_200 - 30);
    expect(pace.leaveAt(10_000)).toBe(5_000 + 11_200 - 30);
  });

  test('counts from what was held: with most of a prompt in the cache there is less to lose', () => {
    const held = new Pace({ localMs: localAt(1), promptTokens: 10_000, heldTokens: 9_000, placedAt: 0 });
    expect(held.leaveAt(9_000)).toBe(100 + 200 - 30);
  });
});

/**
 * One request against a producer that brings chunks at random times and may stop for good; the clock is driven by hand. What
 * is measured is the end by the rule: leaving in time and local prefill for the rest, or the last chunk.
 */
function simulate(random: Random): { end: number; alone: number; limit: number } {
  const localMs = localAt(random.integer(1, 50) / 10, random.integer(0, 10) / 10_000);
  const promptTokens = random.integer(2, 20_000);
  const heldTokens = random.integer(0, 1) === 0 ? 0 : random.integer(0, promptTokens - 1);
  const placedAt = random.integer(0, 1_000_000);
  const chunkTokens = random.integer(16, 4_096);
  const pace = new Pace({ localMs, promptTokens, heldTokens, placedAt });
  const alone = localMs(heldTokens, promptTokens);
  const meanChunkMs = (localMs(heldTokens, promptTokens) * random.integer(1, 300)) / 100;
  const stopsAfter = random.integer(0, 2) === 0 ? random.integer(0, 10) : Infinity;
  let now = placedAt;
  let resumePoint = heldTokens;
  for (let chunk = 0; resumePoint < promptTokens - 1; chunk++) {
    const share = Math.min(chunkTokens, promptTokens - 1 - resumePoint) / (promptTokens - heldTokens);
    const arrives = chunk < stopsAfter ? now + (meanChunkMs * share * random.integer(0, 200)) / 100 : Infinity;
    if (arrives > pace.leaveAt(resumePoint)) {
      now = Math.max(now, pace.leaveAt(resumePoint)) + localMs(resumePoint, promptTokens);
      return { end: now - placedAt, alone, limit: alone * 1.1 + 200 };
    }
    now = arrives;
    resumePoint = Math.min(promptTokens - 1, resumePoint + chunkTokens);
  }
  return { end: now + localMs(promptTokens - 1, promptTokens) - placedAt, alone, limit: alone * 1.1 + 200 };
}

// promise: In mode auto a request is never later than local prefill alone by more than 10 % plus 200 ms, whatever the producer does.
test(`${ROUNDS} random producers: none makes a request later than allowed`, () => {
  const random = new Random(SEED);
  let left = 0;
  let sooner = 0;
  for (let round = 0; round < ROUNDS; round++) {
    const { end, alone, limit } = simulate(random);
    expect(end, `seed ${SEED}, round ${round}`).toBeLessThanOrEqual(limit);
    if (end > alone) left += 1;
    else sooner += 1;
  }
  // The rule is worth something only when remote ways are also used to their end.
  expect(Math.min(left, sooner)).toBeGreaterThan(ROUNDS / 10);
});

describe('the timer', () => {
  afterEach(() => void vi.useRealTimers());

  function start() {
    vi.useFakeTimers();
    const now = (): number => performance.now();
    const placedAt = now();
    const pace = new Pace({ localMs: localAt(1), promptTokens: 1_000, heldTokens: 0, placedAt });
    return { pace, placedAt, now, timer: new PaceTimer(pace, now, 0) };
  }

  test('leaves at that moment, with the code for it', () => {
    const { timer, pace, placedAt } = start();
    const left = pace.leaveAt(0) - placedAt;
    vi.advanceTimersByTime(left - 1);
    expect(timer.signal.aborted).toBe(false);
    vi.advanceTimersByTime(1);
    expect(timer.signal.reason).toMatchObject({ code: 'PRODUCER_SLOW', details: { resumePoint: 0 } });
  });

  test('is moved on by each resume point', () => {
    const { timer, pace, placedAt } = start();
    vi.advanceTimersByTime(200);
    timer.reached(500);
    vi.advanceTimersByTime(pace.leaveAt(500) - placedAt - 201);
    expect(timer.signal.aborted).toBe(false);
    vi.advanceTimersByTime(1);
    expect(timer.signal.reason).toMatchObject({ details: { resumePoint: 500 } });
  });

  test('leaves at once when the moment is over already', () => {
    const { pace, now } = start();
    vi.advanceTimersByTime(10_000);
    expect(new PaceTimer(pace, now, 0).signal.aborted).toBe(true);
  });

  test('does nothing once it is stopped', () => {
    const { timer } = start();
    timer.stop();
    vi.advanceTimersByTime(100_000);
    expect(timer.signal.aborted).toBe(false);
  });
});
