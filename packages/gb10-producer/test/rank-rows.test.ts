import { describe, expect, it } from 'vitest';

import { distinctRanks } from '../src/backend/rank-rows.js';
import type { RankLink } from '../src/bridge/rank-link.js';
import type { Range } from '../src/bridge/schema.js';
import { PATTERN_GEOMETRY } from './support/pattern-backend.js';

const rank = (number: number, layers: Range, heads: Range): RankLink =>
  ({ rank: number, layers, heads }) as unknown as RankLink;
const numbers = (...ranks: RankLink[]): number[] => distinctRanks(PATTERN_GEOMETRY, ranks).map((one) => one.rank);

// Three layers, two KV heads.
describe('the ranks of a worker', () => {
  it('may share layers and heads', () => {
    expect(numbers(rank(0, [0, 3], [0, 1]), rank(1, [0, 3], [1, 2]))).toEqual([0, 1]);
    expect(numbers(rank(0, [0, 1], [0, 2]), rank(1, [1, 3], [0, 2]))).toEqual([0, 1]);
  });

  it('that repeat a head are left out', () => {
    const repeated = [
      rank(0, [0, 3], [0, 1]),
      rank(1, [0, 3], [0, 1]),
      rank(2, [0, 3], [1, 2]),
      rank(3, [0, 3], [1, 2]),
    ];
    expect(numbers(...repeated)).toEqual([0, 2]);
  });

  it.each([
    ['a head is missing', [rank(0, [0, 3], [0, 1])]],
    ['a layer is missing', [rank(0, [0, 2], [0, 2])]],
    ['a head comes from two that are not the same', [rank(0, [0, 3], [0, 2]), rank(1, [1, 3], [0, 2])]],
    ['there is none', []],
  ])('are refused when %s', (_, ranks) => {
    expect(() => numbers(...ranks)).toThrow(expect.objectContaining({ code: 'MODEL_UNSUPPORTED' }) as Error);
  });
});
