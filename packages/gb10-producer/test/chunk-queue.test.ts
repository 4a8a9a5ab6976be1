import { describe, expect, it } from 'vitest';

import type { PrefillChunk } from '../src/backend/backend.js';
import { ChunkQueue } from '../src/backend/chunk-queue.js';

let released: number[];

function queueOf(count: number): ChunkQueue {
  released = [];
  const queue = new ChunkQueue(() => undefined);
  for (let start = 0; start < count; start += 1) {
    const release = (): void => void released.push(start);
    const readShard = (): Promise<void> => Promise.resolve();
    queue.push({ start, end: start + 1, windowStart: start + 1, computedAtMs: 0, readShard, release });
  }
  return queue;
}

async function read(chunks: AsyncIterator<PrefillChunk, void>): Promise<number | null> {
  const { value } = await chunks.next();
  return value === undefined ? null : value.start;
}

describe('ChunkQueue', () => {
  it('hands out what waits after compute has finished', async () => {
    const queue = queueOf(2);
    queue.finish();
    const chunks = queue[Symbol.asyncIterator]();
    expect([await read(chunks), await read(chunks), await read(chunks)]).toEqual([0, 1, null]);
  });

  // As when the engine dies while the last chunks, whose rows are still in it, wait for a slow reader.
  it('gives the reader the error when chunks are dropped although compute has finished', async () => {
    const queue = queueOf(3);
    queue.finish();
    const chunks = queue[Symbol.asyncIterator]();
    expect(await read(chunks)).toBe(0);
    const error = new Error('the engine died');
    queue.fail(error);
    expect(released).toEqual([1, 2]);
    await expect(read(chunks)).rejects.toBe(error);
  });

  it('keeps the first error', async () => {
    const queue = queueOf(1);
    const first = new Error('first');
    queue.fail(first);
    queue.fail(new Error('second'));
    await expect(read(queue[Symbol.asyncIterator]())).rejects.toBe(first);
  });
});
