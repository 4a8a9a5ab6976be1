import { createHash, randomBytes } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Manifest } from '../../src/models/manifest.js';
import { pull, type PulledFile, type PullOptions } from '../../src/models/pull.js';
import { ModelStores, type StoreFolders } from '../../src/models/stores.js';
import type { RetryPolicy } from '../../src/models/transfer/download.js';

export const NO_STORES: StoreFolders = { huggingface: [], ollama: [], lmstudio: [] };
/** As the real policy, without waiting. */
export const QUICK: RetryPolicy = { attempts: 4, firstDelayMs: 1, maxDelayMs: 4, progressBytes: 1024, stallMs: 10_000 };

export function sha256(bytes: Buffer): string {
  return createHash('sha256').update(bytes).digest('hex');
}

export function manifestOf(files: Record<string, Buffer>, name = 'test-model'): Manifest {
  return {
    schema: 1,
    name,
    source: { type: 'hub', repository: 'owner/name', revision: '0'.repeat(40) },
    files: Object.entries(files).map(([path, bytes]) => ({ path, size: bytes.length, sha256: sha256(bytes) })),
  };
}

export function noise(bytes: number): Buffer {
  return randomBytes(bytes);
}

export async function temporaryFolder(): Promise<{ path: string; remove: () => Promise<void> }> {
  const path = await mkdtemp(join(tmpdir(), 'muser-models-'));
  return { path, remove: () => rm(path, { recursive: true, force: true }) };
}

export interface TestPull {
  files: PulledFile[];
  retries: string[];
  /** Sum of the bytes that were told of. */
  bytes: number;
}

/** Pulls over a mirror at `url` unless `options` say otherwise. */
export async function testPull(
  url: string,
  options: Pick<PullOptions, 'manifest' | 'folder'> & Partial<PullOptions> & { found?: StoreFolders },
): Promise<TestPull> {
  const retries: string[] = [];
  let bytes = 0;
  const files = await pull({
    source: { type: 'web', web: { base: new URL(url), token: null }, path: '' },
    jobs: 2,
    stores: new ModelStores(options.found ?? NO_STORES),
    retries: QUICK,
    signal: AbortSignal.timeout(30_000),
    events: {
      onBytes: (delta) => {
        bytes += delta;
      },
      onFile: () => undefined,
      onRetry: (reason) => retries.push(reason),
    },
    ...options,
  });
  return { files, retries, bytes };
}
