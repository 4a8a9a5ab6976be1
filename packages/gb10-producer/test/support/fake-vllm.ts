import { fileURLToPath } from 'node:url';

import { createLogger } from '@muser/service-kit';

import { VllmBackend, type VllmOptions } from '../../src/backend/vllm.js';

const FAKE_WORKER = fileURLToPath(new URL('fake_worker.py', import.meta.url));

/** The real backend, bridge and child process; behind them a worker that computes patterns and can be told to fail. */
export function fakeOptions(settings: Record<string, unknown> = {}, more: Partial<VllmOptions> = {}): VllmOptions {
  return {
    modelPath: '/models/fake',
    modelDigest: new Uint8Array(32).fill(3),
    python: 'python3',
    args: [FAKE_WORKER],
    // The caller's own object, so that a test can change what later workers are told.
    settings: Object.assign(settings, { maxPromptTokens: 2048, chunkTokens: 64, ...settings }),
    workerFile: null,
    maxPromptTokens: 2048,
    maxConcurrent: 2,
    startLimitMs: 30_000,
    hangLimitMs: 20_000,
    restartPausesMs: [0, 0, 0],
    idleUnloadMs: null,
    memoryFloorBytes: 0,
    onMilestone: () => undefined,
    logger: createLogger('producer', 'silent'),
    ...more,
  };
}

export function openFake(
  settings: Record<string, unknown> = {},
  more: Partial<VllmOptions> = {},
): Promise<VllmBackend> {
  return VllmBackend.open(fakeOptions(settings, more), new AbortController().signal);
}
