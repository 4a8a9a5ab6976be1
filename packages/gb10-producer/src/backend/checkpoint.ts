import { createHash } from 'node:crypto';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';

import { MuserError } from '@muser/protocol';
import { fileDigest } from '@muser/service-kit';

/** Forms of weights, the preferred one first: a folder that has several is loaded from this one. */
const WEIGHTS = ['.safetensors', '.bin'];

/**
 * Digest of a Hugging Face checkpoint: SHA-256 over a line "<SHA-256 in hexadecimal>  <name>" for each of its weights
 * files, sorted by name, which is what `sha256sum` prints.
 * @throws MuserError MODEL_LOAD_FAILED when the folder has no weights; ServiceError NOT_FOUND when a file cannot be read
 */
export async function checkpointDigest(folder: string, cacheDir: string, signal?: AbortSignal): Promise<Uint8Array> {
  const names = await readdir(folder).catch((cause: unknown) => {
    throw new MuserError('MODEL_LOAD_FAILED', `${folder} is no folder that can be read`, { cause });
  });
  const weights = WEIGHTS.map((ending) => names.filter((name) => name.endsWith(ending)).sort());
  const files = weights.find((found) => found.length > 0);
  if (files === undefined || !names.includes('config.json')) {
    throw new MuserError('MODEL_LOAD_FAILED', `${folder} has no config.json with weights (${WEIGHTS.join(' or ')})`);
  }
  const hash = createHash('sha256');
  for (const name of files) {
    const digest = await fileDigest(join(folder, name), cacheDir, signal);
    hash.update(`${Buffer.from(digest).toString('hex')}  ${name}\n`);
  }
  return Uint8Array.from(hash.digest());
}
