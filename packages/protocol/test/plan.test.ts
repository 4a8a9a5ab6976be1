import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { chunkBytesOf, rowBytesOf, type Geometry } from '../src/geometry.js';
import { planChunkShards, windowStartOf } from '../src/transfer/plan.js';
import { geometry as arbitraryGeometry } from './support/arbitraries.js';
import { expectCode } from './support/errors.js';
import { geometry } from './support/transfers.js';

const range = { wireType: 'f16' as const, chunkStart: 100, chunkEnd: 120, windowStart: 112 };
const MIB = 1024 * 1024;

/** The 30-B's: 52 layers in the pattern window, window, window, global. */
const large: Geometry = {
  layers: Array.from({ length: 52 }, (_, layer) => (layer % 4 === 3 ? 'global' : 'window')),
  kvHeads: 2,
  headDimension: 128,
  windowTokens: 2048,
  ropeBase: 500_000,
  ropeLayers: 'window',
  vocabularySize: 202_048,
};

describe('chunkBytesOf', () => {
  it('counts the rows of a window layer that the window reaches', () => {
    const row = 2 * rowBytesOf(large);
    expect(chunkBytesOf(large, 512)).toBe(row * 52 * 512);
    expect(chunkBytesOf(large, 4096)).toBe(row * (13 * 4096 + 39 * 2048));
    expect(chunkBytesOf(large, 512, 0)).toBe(row * 13 * 512);
  });
});

describe('planChunkShards', () => {
  it('sends every row of a chunk exactly once, in few and allowed shards', () => {
    const chunk = fc.record({
      geometry: arbitraryGeometry,
      chunkStart: fc.nat(1000),
      tokens: fc.integer({ min: 1, max: 5000 }),
      windowTokens: fc.nat(5000),
    });
    fc.assert(
      fc.property(chunk, ({ geometry: of, chunkStart, tokens, windowTokens }) => {
        const chunkEnd = chunkStart + tokens;
        const windowStart = Math.max(chunkStart, chunkEnd - windowTokens);
        const plans = planChunkShards({ geometry: of, wireType: 'bf16', chunkStart, chunkEnd, windowStart });
        const next = new Map<string, number>();
        for (const plan of plans) {
          expect(plan.payloadBytes).toBe(plan.parts.length * plan.tokenCount * rowBytesOf(of));
          expect(plan.payloadBytes).toBeLessThanOrEqual(MIB);
          for (const { layer, kind } of plan.parts) {
            const start = of.layers[layer] === 'window' ? windowStart : chunkStart;
            expect(plan.tokenStart).toBe(next.get(`${layer}${kind}`) ?? start);
            next.set(`${layer}${kind}`, plan.tokenStart + plan.tokenCount);
          }
        }
        const sent = of.layers.filter((kind) => kind === 'global' || windowStart < chunkEnd).length * 2;
        expect(next.size).toBe(sent);
        expect([...next.values()].every((end) => end === chunkEnd)).toBe(true);
        const payloadBytes = plans.reduce((sum, plan) => sum + plan.payloadBytes, 0);
        expect(payloadBytes).toBe(chunkBytesOf(of, tokens, chunkEnd - windowStart));
      }),
      { numRuns: 30 },
    );
  });

  it('puts layers together up to 1 MiB', () => {
    const plans = planChunkShards({
      geometry: large,
      wireType: 'bf16',
      chunkStart: 0,
      chunkEnd: 512,
      windowStart: 0,
    });
    expect(plans).toHaveLength(26);
    expect(plans.every(({ payloadBytes }) => payloadBytes === MIB)).toBe(true);
  });

  it('divides a range that is too long into nearly equal ones', () => {
    const chunk = { geometry: large, wireType: 'f16' as const, chunkStart: 0, chunkEnd: 2049, windowStart: 2049 };
    const plans = planChunkShards(chunk);
    expect(plans.slice(0, 13).map(({ tokenCount }) => tokenCount)).toEqual(Array<number>(13).fill(1024));
    expect(plans.slice(13).map(({ tokenCount }) => tokenCount)).toEqual(Array<number>(26).fill(1025));
  });

  it('sends window rows apart when they begin later, and not at all when skipped', () => {
    const ranges = planChunkShards({ geometry, ...range }).map((plan) => [plan.tokenStart, plan.parts.length]);
    expect(ranges).toEqual([
      [100, 2],
      [112, 6],
    ]);
    expect(planChunkShards({ geometry, ...range, windowStart: 120 })).toHaveLength(1);
    expect(planChunkShards({ geometry, ...range, windowStart: 100 })).toHaveLength(1);
  });

  it('refuses what is no chunk', async () => {
    for (const wrong of [{ chunkEnd: 100 }, { windowStart: 99 }, { windowStart: 121 }]) {
      await expectCode(() => planChunkShards({ geometry, ...range, ...wrong }), 'RANGE_VIOLATION');
    }
    await expectCode(() => planChunkShards({ geometry, ...range }, 31), 'GEOMETRY_MISMATCH');
  });
});

describe('windowStartOf', () => {
  it.each([
    [0, 0, 5, 0],
    [0, 0, 8, 0],
    [0, 0, 9, 1],
    [0, 8, 10, 8],
    [4, 4, 20, 12],
    [4, 4, 6, 4],
  ])('of a transfer from %i and a chunk [%i, %i) with a window of 8 is %i', (firstToken, start, end, expected) => {
    expect(windowStartOf(geometry, firstToken, start, end)).toBe(expected);
  });

  it('is the end when there is no window', () => {
    const globalOnly: Geometry = { ...geometry, layers: ['global'], windowTokens: 0 };
    expect(windowStartOf(globalOnly, 0, 4, 9)).toBe(9);
  });
});
