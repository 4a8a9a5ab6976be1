// The whole way on a real engine: what a decoder receives is what the engine has, bit for bit.
import { FaultProxy } from '@muser/testing';
import { afterEach, describe, expect, it } from 'vitest';

import { type DirectOptions, directRows } from './support/direct-rows.js';
import { promptTokens } from './support/rows.js';
import { NOTHING_LEFT, TestBed, until } from './support/test-bed.js';

const prompt = (length: number, seed = 1): Uint32Array => promptTokens(length, 4096, seed);

/** 16,000 tokens take minutes on one thread of a machine that is busy otherwise. */
const LONG_MS = 600_000;

let bed: TestBed;

afterEach(async () => {
  const left = await bed.idle();
  await bed.close();
  expect(left).toEqual(NOTHING_LEFT);
});

describe('llama', () => {
  // fault: one-large-message
  it.each([2, 3, 511, 512, 513, 514, 2049, 16_000])(
    'hands over %i tokens bit for bit',
    async (length) => {
      bed = await TestBed.start({ maxPromptTokens: 16_384 });
      const decoder = await bed.peer('decoder');
      const tokens = prompt(length);
      const { rows, seal } = await decoder.receive(decoder.request({ tokens, deadlineMs: LONG_MS / 2 }));
      expect(seal.endToken).toBe(length - 1);
      expect(rows.firstDifference(await directRows(tokens, { chunkTokens: 512 }))).toBeNull();
    },
    LONG_MS,
  );

  const variants: [
    string,
    Record<string, unknown>,
    { chunkTokens?: number; heldTokens?: number },
    Partial<DirectOptions>,
  ][] = [
    ['an engine with chunks of 7', { chunkTokens: 7 }, {}, { chunkTokens: 7, engineChunkTokens: 7 }],
    ['a wanted chunk of 100', {}, { chunkTokens: 100 }, { chunkTokens: 100 }],
    ['no flash attention', { flashAttention: false }, {}, { flashAttention: false }],
    ['a quantized cache', { kvType: 'q8_0' }, {}, { kvType: 'q8_0' }],
    ['300 tokens held', {}, { heldTokens: 300 }, {}],
  ];
  it.each(variants)('does so with %s', async (_, config, options, direct) => {
    bed = await TestBed.start({ maxPromptTokens: 2048, ...config });
    const decoder = await bed.peer('decoder');
    const tokens = prompt(1000);
    const { rows } = await decoder.receive(decoder.request({ tokens, ...options }));
    const expected = await directRows(tokens, { chunkTokens: 512, ...direct });
    expect(rows.firstDifference(expected, options.heldTokens)).toBeNull();
  });

  it('serves two clients at once, each its own prompt', async () => {
    bed = await TestBed.start({ maxPromptTokens: 4096, maxConcurrent: 2 });
    const [first, second] = [await bed.peer('decoder'), await bed.peer('decoder')];
    const prompts = [prompt(1500, 1), prompt(1200, 2)] as const;
    const received = await Promise.all([
      first.receive(first.request({ tokens: prompts[0] })),
      second.receive(second.request({ tokens: prompts[1] })),
    ]);
    for (const [index, tokens] of prompts.entries()) {
      expect(received[index]?.rows.sameWithin(await directRows(tokens, { chunkTokens: 512 }), 0.05)).toBe(true);
    }
  });

  // fault: computes-for-nobody
  it('frees the engine at once when a reader cancels or is lost, so that the next is served', async () => {
    bed = await TestBed.start({ maxPromptTokens: 16_384 });
    const proxy = await FaultProxy.listen({ target: bed.producer.address });
    try {
      for (let round = 0; round < 4; round += 1) {
        const decoder = await bed.peer('decoder', proxy.target);
        const stop = new AbortController();
        const received = decoder.receive(decoder.request({ tokens: prompt(16_000, round) }), {
          signal: stop.signal,
          onEvent: (event) => {
            if (event.type !== 'shard' || event.chunkComplete === null) return;
            if (round % 2 === 0) stop.abort();
            else proxy.reset();
          },
        });
        await expect(received).rejects.toMatchObject({ code: round % 2 === 0 ? 'CANCELLED' : 'PEER_UNREACHABLE' });
      }
    } finally {
      await proxy.close();
    }
    await until(() => bed.producer.transfers.load.activeTransfers === 0);
    expect(bed.producer.backend.stats()).toEqual({ activePrefills: 0, reservedTokens: 0, unreleasedChunks: 0 });
    const decoder = await bed.peer('decoder');
    const tokens = prompt(1000);
    const { rows } = await decoder.receive(decoder.request({ tokens }));
    expect(rows.firstDifference(await directRows(tokens, { chunkTokens: 512 }))).toBeNull();
  });

  // fault: all-at-the-end
  it('sends chunks while later ones are computed', async () => {
    bed = await TestBed.start({ maxPromptTokens: 8192, pacing: 4000 });
    const decoder = await bed.peer('decoder');
    const computing: boolean[] = [];
    await decoder.receive(decoder.request({ tokens: prompt(4097) }), {
      onEvent: (event) => {
        if (event.type === 'shard') computing.push(bed.producer.backend.stats().activePrefills === 1);
      },
    });
    const overlapped = computing.filter(Boolean).length / computing.length;
    // Seven of eight chunks can be there before the last one is computed.
    expect(overlapped).toBeGreaterThan(0.5);
  });
});
