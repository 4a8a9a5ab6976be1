import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { realpath, stat } from 'node:fs/promises';
import { join } from 'node:path';

import { z } from 'zod';

import { ServiceError } from './errors.js';
import { ensurePrivateFolder, readSmallFile, writeFileAtomic } from './files.js';

const CACHE_FILE = 'file-digests.json';
/** Files remembered; the oldest is forgotten first. */
const CACHE_ENTRIES = 32;
const MAX_CACHE_BYTES = 1 << 20;
const READ_BYTES = 1 << 20;

const cacheSchema = z.array(
  z.object({ path: z.string(), size: z.number(), mtimeMs: z.number(), sha256: z.string().regex(/^[0-9a-f]{64}$/) }),
);
type CacheEntry = z.infer<typeof cacheSchema>[number];

/**
 * SHA-256 of a file, 32 bytes. Tens of gigabytes of weights take a minute, so the result is kept in `cacheDir` for as
 * long as the file's real path, size and modification time stay the same.
 *
 * @throws ServiceError NOT_FOUND when the file cannot be read; an AbortError when the signal is aborted.
 */
export async function fileDigest(path: string, cacheDir: string, signal?: AbortSignal): Promise<Uint8Array> {
  const file = await identify(path);
  const cachePath = join(cacheDir, CACHE_FILE);
  const entries = await readCache(cachePath);
  const known = entries.find(
    (entry) => entry.path === file.path && entry.size === file.size && entry.mtimeMs === file.mtimeMs,
  );
  if (known !== undefined) return Uint8Array.from(Buffer.from(known.sha256, 'hex'));

  const hash = createHash('sha256');
  for await (const block of createReadStream(file.path, { highWaterMark: READ_BYTES, ...(signal && { signal }) })) {
    hash.update(block as Buffer);
  }
  const digest = hash.digest();
  const others = entries.filter((entry) => entry.path !== file.path);
  const kept = [{ ...file, sha256: digest.toString('hex') }, ...others].slice(0, CACHE_ENTRIES);
  await ensurePrivateFolder(cacheDir);
  await writeFileAtomic(cachePath, `${JSON.stringify(kept, null, 2)}\n`);
  return Uint8Array.from(digest);
}

async function identify(path: string): Promise<{ path: string; size: number; mtimeMs: number }> {
  try {
    const real = await realpath(path);
    const { size, mtimeMs } = await stat(real);
    return { path: real, size, mtimeMs };
  } catch (error) {
    const reason = (error as NodeJS.ErrnoException).code ?? 'unknown reason';
    throw new ServiceError('NOT_FOUND', `the file ${path} cannot be read (${reason})`, { cause: error });
  }
}

async function readCache(path: string): Promise<CacheEntry[]> {
  try {
    return cacheSchema.parse(JSON.parse((await readSmallFile(path, MAX_CACHE_BYTES)) ?? '[]'));
  } catch {
    // A cache that is missing or damaged costs one more hash, nothing else.
    return [];
  }
}
