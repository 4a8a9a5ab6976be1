import { execa } from 'execa';
import { describe, expect, it } from 'vitest';
import type { Sample } from '../soak/census.js';
import { page } from '../soak/page.js';
import { plan } from '../soak/plan.js';
import { RandomFaults } from '../soak/random-faults.js';
import type { SoakReport } from '../soak/run.js';
import { failures, slopes } from '../soak/verdict.js';
import { inCheckout } from './support/checkout.js';

/** Descriptors and megabytes of the decoder at five censuses, and another process of the producer at each. */
function reportOf(descriptors: readonly number[], more: Partial<SoakReport> = {}): SoakReport {
  const sample = (pid: number, count: number): Sample => ({
    pid,
    residentBytes: count << 20,
    threads: 11,
    descriptors: count,
    kinds: { socket: count },
    node: { heapUsed: 1, external: 1, arrayBuffers: 1, resources: {} },
  });
  return {
    seed: 1,
    backend: 'llama',
    transfers: 500,
    outcomes: { same: 400, found: 60, cancelled: 40, wrong: 0, unsettled: 0, error: 0 },
    ways: { remote: 460 },
    fallbacks: {},
    failedAttempts: {},
    faults: {},
    kills: 5,
    departures: 60,
    kvBytes: 1,
    tokens: 1,
    reusedTokens: 0,
    unsettled: 0,
    censuses: descriptors.map((count, index) => ({
      transfers: 125 * index,
      samples: { decoder: sample(1, count), mortal: sample(10 + index, 100 * index) },
    })),
    problems: [],
    ...more,
  };
}

describe('the verdict of a soak', () => {
  it('passes when descriptors come and go', () => {
    expect(failures(reportOf([20, 40, 30, 45, 44]))).toEqual([]);
    expect(failures(reportOf([20, 21, 22, 23, 24]))).toEqual([]);
  });

  it('fails when the descriptors of a process grow from census to census', () => {
    const report = reportOf([20, 25, 30, 35, 40]);
    expect(failures(report)).toEqual(['the descriptors of decoder grow at every census']);
    expect(page(report)).toContain('Failed: the descriptors of decoder');
    // Per 100 transfers, from the second census on; a process that was started anew has no slope.
    expect(slopes(report).map(({ name, descriptors, residentMib }) => [name, descriptors, residentMib])).toEqual([
      ['decoder', expect.closeTo(4), expect.closeTo(4)],
    ]);
  });

  it.each([
    [{ outcomes: { same: 1, found: 0, cancelled: 0, wrong: 2, unsettled: 0, error: 0 } }, '2 wrong answers'],
    [{ outcomes: { same: 1, found: 0, cancelled: 0, wrong: 0, unsettled: 1, error: 0 } }, '1 requests without an end'],
    [{ outcomes: { same: 1, found: 0, cancelled: 0, wrong: 0, unsettled: 0, error: 1 } }, '1 requests that ended'],
    [{ unsettled: 3 }, '3 transfers or sequences'],
  ])('fails for %o', (more, failure) => {
    expect(failures(reportOf([20, 20, 20, 20, 20], more))).toEqual([expect.stringContaining(failure)]);
  });
});

describe('what a soak draws', () => {
  it('is the same for the same seed, and another for another', () => {
    const draw = (seed: number) => {
      const faults = new RandomFaults(seed);
      return [plan(300, seed), Array.from({ length: 100 }, () => faults.next())];
    };
    expect(draw(7)).toEqual(draw(7));
    expect(draw(7)).not.toEqual(draw(8));
  });

  it('has every length, departures, repeats and kills', () => {
    const planned = plan(500, 1);
    expect(planned.filter(({ tokens }) => tokens < 20).length).toBeGreaterThan(50);
    expect(planned.filter(({ tokens }) => tokens > 4_000).length).toBeGreaterThan(20);
    expect(planned.some(({ leaveAfter, returns }) => leaveAfter !== null && returns)).toBe(true);
    expect(planned.filter(({ kill }) => kill).length).toBe(14);
    for (const { index, repeats } of planned) {
      // What is repeated is a document of its own, and comes before.
      if (repeats === null) continue;
      expect(repeats).toBeLessThan(index);
      expect(planned[repeats]?.repeats).toBeNull();
    }
  });
});

describe.each([
  ['soak', ['--transfers', '3'], 2, /--transfers takes/],
  ['soak', ['--backend', 'none'], 2, /--backend is llama or vllm/],
  ['soak', ['--help'], 0, /usage: npm run soak/],
  ['links', ['telegraph'], 2, /no such link: telegraph/],
  ['links', ['--help'], 0, /usage: npm run test:links/],
  // Without a PATH there are no tools.
  ['links', [], 77, /links cannot be tested here; missing:\n {2}(`ip`: install|Linux)/],
] as const)('npm run %s', (program, args, exitCode, message) => {
  it(`${args.join(' ')} ends with ${exitCode}`, async () => {
    const main = inCheckout(`e2e/dist/${program}/main.js`);
    const run = await execa(process.execPath, [main, ...args], { extendEnv: false, env: { PATH: '' }, reject: false });
    expect({ exitCode: run.exitCode, stderr: run.stderr }).toEqual({
      exitCode,
      stderr: expect.stringMatching(message) as string,
    });
  });
});
