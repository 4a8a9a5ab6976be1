import { expect, test } from 'vitest';
import { TransferFigures } from '../../src/ingest/figures.js';

test('overlap is the share of bytes installed before the prefill ended', () => {
  const figures = new TransferFigures();
  figures.beginAt = 100;
  for (const [at, chunk] of [
    [150, 0],
    [250, 1],
    [350, 2],
    [450, 3],
  ] as const) {
    figures.addShard(at, chunk, 1_000);
    figures.addInstall(at + 10, 1_000);
  }
  expect(figures.overlap).toBe(0);
  figures.prefill = { startMs: 0, endMs: 300, queueMs: 0, reusedTokens: 0 };
  expect(figures.prefillEndAt).toBe(400);
  expect(figures.overlap).toBe(0.75);
  expect(figures).toMatchObject({ shards: 4, payloadBytes: 4_000 });
});

test('the link is measured within chunks only, where shards follow each other', () => {
  const figures = new TransferFigures();
  figures.addShard(0, 0, 500);
  figures.addShard(10, 0, 500);
  figures.addShard(1_000, 1, 500);
  figures.addShard(1_005, 1, 250);
  expect(figures.linkSample).toEqual({ bytes: 750, milliseconds: 15 });
});
