import { availableParallelism } from 'node:os';

import { Engine, loadModel } from '@muser/metal';
import { describe, expect, it } from 'vitest';

import { LlamaBackend, type LlamaOptions } from '../src/backend/llama.js';
import { describeBackendCompliance } from './backend-compliance.js';
import { MUSE_NANO } from './support/model.js';
import { promptTokens, Rows } from './support/rows.js';

const OPTIONS: LlamaOptions = {
  modelPath: MUSE_NANO,
  modelDigest: new Uint8Array(32).fill(7),
  chunkTokens: 64,
  maxPromptTokens: 2048,
  maxConcurrent: 2,
  threads: 1,
  flashAttention: false,
  kvType: 'f16',
  tokensPerSecond: null,
};

/** An engine of its own, and one export of everything that is there at each chunk's end. */
async function referenceRows(tokens: Uint32Array, chunkTokens: number): Promise<Rows> {
  const model = await loadModel(MUSE_NANO);
  const engine = await Engine.create(model, {
    maxSequences: 2,
    contextTokens: 4096,
    chunkTokens: 64,
    flashAttention: false,
    kvType: 'f16',
    threads: 1,
  });
  const { geometry, vocabularySize } = model.info;
  const count = tokens.length - 1;
  const rows = new Rows({ ...geometry, vocabularySize }, 'f16', count);
  const rowBytes = geometry.kvHeads * geometry.headDimension * 2;
  const sequence = engine.open(count);
  for (let start = 0; start < count; start += chunkTokens) {
    const end = Math.min(start + chunkTokens, count);
    await sequence.evaluate(tokens.subarray(start, end));
    const exported = await sequence.exportRange(start, end, { windowStart: start });
    for (const layer of geometry.layers.keys()) {
      for (const kind of ['k', 'v'] as const) {
        const bytes = new Uint8Array((end - start) * rowBytes);
        exported.read(layer, kind, start, end - start, bytes, 0);
        rows.put(layer, kind, start, bytes);
      }
    }
    exported.dispose();
  }
  await sequence.dispose();
  await engine.close();
  model.close();
  return rows;
}

describeBackendCompliance('llama', { open: () => LlamaBackend.open(OPTIONS), referenceRows });

describe('LlamaBackend', () => {
  it('keeps to the pace that it is given', async () => {
    const backend = await LlamaBackend.open({ ...OPTIONS, tokensPerSecond: 1000 });
    try {
      const run = backend.prefill({
        tokens: promptTokens(401, backend.model.geometry.vocabularySize, 3),
        heldTokens: 0,
        chunkTokens: 0,
        wireType: 'f16',
        cacheScope: 'test',
        staging: { acquire: () => Promise.resolve(), release: () => {} },
        signal: new AbortController().signal,
      });
      for await (const chunk of run) chunk.release();
      const { startedAtMs, endedAtMs } = run.timings;
      expect((endedAtMs ?? 0) - (startedAtMs ?? 0)).toBeGreaterThanOrEqual(400);
    } finally {
      await backend.close();
    }
  });

  it.each([
    ['/nonexistent/model.gguf', 'MODEL_LOAD_FAILED'],
    [import.meta.filename, 'MODEL_LOAD_FAILED'],
  ])('refuses %s with a code', async (modelPath, code) => {
    await expect(LlamaBackend.open({ ...OPTIONS, modelPath })).rejects.toMatchObject({ code });
  });

  it('says when the cache does not fit', async () => {
    const huge = {
      ...OPTIONS,
      maxPromptTokens: 131_072,
      maxConcurrent: 64,
      threads: Math.min(2, availableParallelism()),
    };
    await expect(LlamaBackend.open({ ...huge, chunkTokens: 100_000 })).rejects.toMatchObject({
      code: 'INVALID_REQUEST',
    });
  });
});
