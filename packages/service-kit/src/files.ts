import { randomBytes } from 'node:crypto';
import { chmod, mkdir, open, readFile, rename, rm, stat } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';

import { ServiceError } from './errors.js';

/**
 * Replaces a file's content so that after a crash there is the old content or the new, never a mixture. The file gets
 * `mode` (default: readable by its owner alone).
 */
export async function writeFileAtomic(path: string, data: string | Uint8Array, mode = 0o600): Promise<void> {
  const folder = dirname(path);
  const temporary = join(folder, `.${basename(path)}.${randomBytes(6).toString('hex')}.tmp`);
  try {
    const file = await open(temporary, 'wx', mode);
    try {
      // The process's umask may have taken bits away from the mode given to open.
      await file.chmod(mode);
      await file.writeFile(data);
      await file.sync();
    } finally {
      await file.close();
    }
    await rename(temporary, path);
  } catch (error) {
    await rm(temporary, { force: true });
    throw error;
  }
  await syncFolder(folder);
}

/** Makes a folder, with those above it, that only its owner may enter. An existing one is closed to others. */
export async function ensurePrivateFolder(path: string): Promise<void> {
  try {
    await mkdir(path, { recursive: true, mode: 0o700 });
    const found = await stat(path);
    if ((found.mode & 0o077) !== 0) await chmod(path, 0o700);
  } catch (error) {
    const reason = (error as NodeJS.ErrnoException).code ?? 'unknown reason';
    throw new ServiceError('UNAVAILABLE', `the folder ${path} cannot be made or entered (${reason})`, { cause: error });
  }
}

/**
 * A small secret file's text; null when it does not exist.
 *
 * @throws ServiceError CONFIG_INVALID when others than its owner can reach it, or it cannot be read
 */
export async function readPrivateFile(path: string): Promise<string | null> {
  try {
    const { mode } = await stat(path);
    if ((mode & 0o077) === 0) return await readFile(path, 'utf8');
  } catch (error) {
    const reason = (error as NodeJS.ErrnoException).code;
    if (reason === 'ENOENT') return null;
    throw new ServiceError('CONFIG_INVALID', `${path} cannot be read (${reason ?? 'unknown reason'})`, {
      cause: error,
    });
  }
  throw new ServiceError('CONFIG_INVALID', `other users can reach the secret in ${path}: run chmod 600 ${path}`);
}

async function syncFolder(folder: string): Promise<void> {
  const handle = await open(folder, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}
