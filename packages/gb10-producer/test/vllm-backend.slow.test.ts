// Real vLLM on the CPU, loaded once. Needs the environment that `npm run vllm` installs; MUSER_TEST_PYTHON names another.
import { fileURLToPath } from 'node:url';

import { fingerprintOf } from '@muser/protocol';
import { loadModel } from '@muser/metal';
import { createLogger } from '@muser/service-kit';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import type { PrefillBackend } from '../src/backend/backend.js';
import { openBackend } from '../src/backend/open-backend.js';
import { producerConfigSchema, VLLM_PYTHON } from '../src/config.js';
import { describeBackendCompliance } from './backend-compliance.js';
import { directRows } from './support/direct-rows.js';
import { MUSE_NANO } from './support/model.js';
import { SharedBackend } from './support/shared-backend.js';

const CHECKPOINT = fileURLToPath(new URL('../../../models/muse-nano/hf', import.meta.url));
const START_LIMIT_MS = 600_000;

let vllm: PrefillBackend;
let stateDir: string;
const milestones: string[] = [];

beforeAll(async () => {
  stateDir = await mkdtemp(join(tmpdir(), 'muser-vllm-'));
  const config = producerConfigSchema.parse({
    stateDir,
    backend: 'vllm',
    model: CHECKPOINT,
    chunkTokens: 64,
    maxPromptTokens: 2048,
    maxConcurrent: 2,
    threads: 1,
    vllm: { python: process.env['MUSER_TEST_PYTHON'] ?? VLLM_PYTHON, hangLimitMs: 120_000 },
  });
  vllm = await openBackend({
    config,
    logger: createLogger('producer', process.env['MUSER_TEST_LOG'] === '1' ? 'debug' : 'silent'),
    signal: new AbortController().signal,
    onMilestone: (name) => milestones.push(name),
  });
}, START_LIMIT_MS);

afterAll(async () => {
  await vllm.close();
  await rm(stateDir, { recursive: true });
}, 60_000);

// llama.cpp has Q8_0 weights and other kernels: its rows are near, another prompt's or a wrong permutation's are far off.
describeBackendCompliance('vLLM', {
  open: () => Promise.resolve(new SharedBackend(vllm)),
  referenceRows: (tokens, chunkTokens) => directRows(tokens, { chunkTokens, flashAttention: false }),
  tolerance: 0.05,
  reuses: true,
});

describe('vLLM', () => {
  it('told every stage of its start', () => {
    expect(milestones).toEqual(['environment', 'weights', 'kv_cache', 'warm_up', 'ready']);
  });

  it('has the fingerprint of the GGUF file of the same model', async () => {
    const gguf = await loadModel(MUSE_NANO);
    const { geometry, vocabularySize, tokenizerSha256 } = gguf.info;
    gguf.close();
    const fingerprint = fingerprintOf({ geometry: { ...geometry, vocabularySize }, tokenizerSha256 });
    expect(vllm.model.geometry).toEqual({ ...geometry, vocabularySize });
    expect(Buffer.from(vllm.model.identity.fingerprint).toString('hex')).toBe(Buffer.from(fingerprint).toString('hex'));
  });
});
