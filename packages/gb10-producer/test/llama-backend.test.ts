import { describe, expect, it } from 'vitest';

import { LlamaBackend, type LlamaOptions } from '../src/backend/llama.js';
import { describeBackendCompliance } from './backend-compliance.js';
import { directRows } from './support/direct-rows.js';
import { MUSE_NANO } from './support/model.js';
import { CountingBudget, promptTokens } from './support/rows.js';

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

describeBackendCompliance('llama', {
  open: () => LlamaBackend.open(OPTIONS),
  referenceRows: (tokens, chunkTokens) =>
    directRows(tokens, { chunkTokens, engineChunkTokens: OPTIONS.chunkTokens, flashAttention: false }),
  reuses: true,
});

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
        staging: new CountingBudget(1 << 30),
        signal: new AbortController().signal,
      });
      for await (const chunk of run) chunk.release();
      const { startedAtMs, endedAtMs } = run.timings;
      // Timers count whole milliseconds.
      expect((endedAtMs ?? 0) - (startedAtMs ?? 0)).toBeGreaterThan(399);
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

  it('refuses what the engine cannot do', async () => {
    await expect(LlamaBackend.open({ ...OPTIONS, kvType: 'q8_0' })).rejects.toMatchObject({ code: 'CONFIG_INVALID' });
  });
});
