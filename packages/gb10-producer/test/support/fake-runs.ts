import { MAX_PAYLOAD_BYTES, planChunkShards } from '@muser/protocol';

import type { PrefillRun } from '../../src/backend/backend.js';
import type { VllmBackend } from '../../src/backend/vllm.js';
import { patternRows } from './pattern-backend.js';
import { CountingBudget, promptTokens, Rows } from './rows.js';
import { until } from './test-bed.js';

const never = new AbortController().signal;

/** A prefill on a fake worker. */
export function startRun(on: VllmBackend, seed = 1, length = 700, signal: AbortSignal = never): PrefillRun {
  return on.prefill({
    tokens: promptTokens(length, on.model.geometry.vocabularySize, seed),
    heldTokens: 0,
    chunkTokens: 0,
    wireType: 'bf16',
    cacheScope: 'test',
    staging: new CountingBudget(1 << 30),
    signal,
  });
}

/** Reads one row of every chunk. Resolves to the end of the last one. */
export async function consume(run: PrefillRun): Promise<number> {
  let end = 0;
  for await (const chunk of run) {
    const { start: tokenStart } = chunk;
    const plan = { tokenStart, tokenCount: 1, parts: [{ layer: 2, kind: 'k' as const }], payloadBytes: 256 };
    await chunk.readShard(plan, new Uint8Array(256)).finally(() => chunk.release());
    ({ end } = chunk);
  }
  return end;
}

/** Prefills, reads everything, and tells the first row that is not as it should be; null when all are. */
export async function wrongRow(on: VllmBackend, seed: number, length = 300): Promise<string | null> {
  const { geometry } = on.model;
  const tokens = promptTokens(length, geometry.vocabularySize, seed);
  const rows = new Rows(geometry, 'bf16', length - 1);
  for await (const chunk of startRun(on, seed, length)) {
    const { start: chunkStart, end: chunkEnd, windowStart } = chunk;
    const range = { geometry, wireType: 'bf16', chunkStart, chunkEnd, windowStart } as const;
    for (const plan of planChunkShards(range, MAX_PAYLOAD_BYTES)) {
      const payload = new Uint8Array(plan.payloadBytes);
      await chunk.readShard(plan, payload);
      rows.putShard(plan, payload);
    }
    chunk.release();
  }
  return rows.firstDifference(patternRows(tokens, 'bf16'));
}

/** Waits until a worker is there and takes requests. */
export const ready = (on: VllmBackend): Promise<void> =>
  until(() => on.health.state === 'ready' && on.workerPids.length > 0);

/** Waits until another worker than this one is there and takes requests. */
export async function replaced(on: VllmBackend, worker: number): Promise<void> {
  await until(() => on.health.state === 'ready' && on.workerPids.length > 0 && on.workerPids[0] !== worker);
}
