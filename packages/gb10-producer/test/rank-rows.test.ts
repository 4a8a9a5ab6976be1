import { describe, expect, it } from 'vitest';

import { type Geometry, MuserError, type Part } from '@muser/protocol';

import { distinctRanks, readShardFromRanks } from '../src/backend/rank-rows.js';
import type { RankLink, ReadRequest } from '../src/bridge/rank-link.js';
import type { Payload, Range } from '../src/bridge/schema.js';
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

  // fault: replicated-heads
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

/** A byte of a row, different for every layer, kind, token and head; `at` counts within the head. */
const byteAt = (layer: number, kind: number, token: number, head: number, at: number): number =>
  (layer * 89 + kind * 53 + token * 31 + head * 17 + at) % 251;

const GEOMETRY: Geometry = { ...PATTERN_GEOMETRY, kvHeads: 2, headDimension: 4 };
const HEAD_BYTES = GEOMETRY.headDimension * 2;

/** A rank that answers like a worker, in pieces of `pieceBytes`. */
function serving(layers: Range, heads: Range, pieceBytes: number): RankLink {
  const read = (request: ReadRequest, bytes: number, take: (payload: Payload) => void): Promise<void> => {
    const rows: number[] = [];
    for (const [layer, kind] of request.parts) {
      if (layer < layers[0] || layer >= layers[1]) throw new MuserError('RANGE_VIOLATION', `layer ${layer}`);
      for (let token = request.tokenStart; token < request.tokenStart + request.tokenCount; token += 1) {
        for (let head = heads[0]; head < heads[1]; head += 1) {
          for (let at = 0; at < HEAD_BYTES; at += 1) rows.push(byteAt(layer, kind, token, head, at));
        }
      }
    }
    expect(rows).toHaveLength(bytes);
    const count = Math.ceil(bytes / pieceBytes);
    const pieces = Array.from({ length: count }, (_, i) =>
      Uint8Array.from(rows.slice(i * pieceBytes, (i + 1) * pieceBytes)),
    );
    take({ length: bytes, pieces });
    return Promise.resolve();
  };
  return { layers, heads, read } as unknown as RankLink;
}

describe('a shard', () => {
  const parts: Part[] = [0, 1, 2].flatMap((layer): Part[] => [
    { layer, kind: 'k' },
    { layer, kind: 'v' },
  ]);
  const plan = { tokenStart: 5, tokenCount: 3, parts, payloadBytes: parts.length * 3 * 2 * HEAD_BYTES };
  const expected = Uint8Array.from(
    parts.flatMap(({ layer, kind }) =>
      [5, 6, 7].flatMap((token) =>
        [0, 1].flatMap((head) =>
          Array.from({ length: HEAD_BYTES }, (_, at) => byteAt(layer, kind === 'k' ? 0 : 1, token, head, at)),
        ),
      ),
    ),
  );
  const whole: Range = [0, 2];
  const all: Range = [0, 3];

  // fault: fails-under-load
  it.each([
    ['one rank', [[all, whole]]],
    [
      'ranks that share the layers',
      [
        [[0, 2], whole],
        [[2, 3], whole],
      ],
    ],
    [
      'ranks that share the heads',
      [
        [all, [0, 1]],
        [all, [1, 2]],
      ],
    ],
    [
      'ranks that share both',
      [
        [
          [0, 1],
          [0, 1],
        ],
        [
          [0, 1],
          [1, 2],
        ],
        [
          [1, 3],
          [0, 1],
        ],
        [
          [1, 3],
          [1, 2],
        ],
      ],
    ],
  ] as [string, [Range, Range][]][])('is put together from %s, whatever the pieces', async (_, shares) => {
    for (const pieceBytes of [1, 3, HEAD_BYTES, 50, 10_000]) {
      const ranks = shares.map(([layers, heads]) => serving(layers, heads, pieceBytes));
      const target = new Uint8Array(plan.payloadBytes);
      const signal = new AbortController().signal;
      await readShardFromRanks(GEOMETRY, ranks, { id: 'a', index: 0, plan, target, signal });
      expect(target).toEqual(expected);
    }
  });

  it('is left alone by an answer that comes after the abort', async () => {
    const target = new Uint8Array(plan.payloadBytes);
    const signal = AbortSignal.abort();
    await readShardFromRanks(GEOMETRY, [serving(all, whole, 64)], { id: 'a', index: 0, plan, target, signal });
    expect(target.every((byte) => byte === 0)).toBe(true);
  });
});
