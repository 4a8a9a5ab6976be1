// A worker that SIGKILL does not end, as when the GPU's driver hangs: nothing may claim that its memory is free. It takes
// long because that is how long a driver is given.
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterEach, beforeEach, describe, expect, it } from 'vitest';

import { ReloadableBackend } from '../src/backend/reloadable.js';
import type { VllmBackend } from '../src/backend/vllm.js';
import { openFake } from './support/fake-vllm.js';
import { canFreeze, freeze } from './support/freezer.js';

const STUCK = { code: 'ENGINE_FAILED', message: expect.stringContaining('still there') as string };
const LONG_MS = 120_000;

let folder: string;
let workerFile: string;
let vllm: VllmBackend;
let thaw: () => Promise<void>;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'muser-stuck-'));
  workerFile = join(folder, 'vllm-worker.json');
  vllm = await openFake({}, { workerFile, hangLimitMs: 1_000 });
  thaw = await freeze(vllm.workerPids[0] ?? 0);
});

afterEach(async () => {
  await thaw();
  await vllm.close();
  await rm(folder, { recursive: true });
});

describe.skipIf(!canFreeze())('a worker that cannot be killed', () => {
  it('is an error with advice, and no other one starts beside it', { timeout: LONG_MS }, async () => {
    await expect.poll(() => vllm.health.state, { timeout: 60_000 }).toBe('error');
    expect(vllm.health).toMatchObject({ reason: expect.stringMatching(/still there.*restart the producer/) as string });
    expect(vllm.workerPids).toEqual([]);
    // Also not of the next producer.
    await expect(openFake({}, { workerFile })).rejects.toMatchObject(STUCK);
    await expect(vllm.close()).rejects.toMatchObject(STUCK);
  });

  it('is not unloaded, until it is gone', { timeout: LONG_MS }, async () => {
    const backend = await ReloadableBackend.open(() => Promise.resolve(vllm), new AbortController().signal);
    await expect(backend.unload()).rejects.toMatchObject(STUCK);
    await expect(backend.unload()).rejects.toMatchObject(STUCK);
    await thaw();
    await backend.unload();
  });
});
