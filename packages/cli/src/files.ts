import { constants, closeSync, fstatSync, openSync } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import { readSmallFile } from '@muser/service-kit';
import { usageError } from './exit.js';

/** Opening a pipe that nobody writes to would block a thread for good, which no signal could end. */
const READ = constants.O_RDONLY | constants.O_NONBLOCK;

/**
 * A small file's text; null when it is not there.
 * @throws ServiceError MESSAGE_TOO_LARGE beyond `maxBytes`, CONFIG_INVALID when it is no regular file or cannot be read
 */
export async function readText(path: string, maxBytes: number): Promise<string | null> {
  try {
    return await readSmallFile(path, maxBytes);
  } catch (error) {
    // A path that goes on below a file.
    if (isMissing((error as Error).cause)) return null;
    throw error;
  }
}

/** Opens a file of any size to be read. Throws CliError INVALID_REQUEST for a folder, a pipe or a device. */
export async function openRegular(path: string): Promise<FileHandle> {
  const handle = await open(path, READ);
  try {
    if ((await handle.stat()).isFile()) return handle;
    throw usageError(`${path} is not a regular file`);
  } catch (error) {
    await handle.close();
    throw error;
  }
}

/** Like openRegular, for readers that do not wait; returns the descriptor and the bytes that the file has. */
export function openRegularSync(path: string): { file: number; size: number } {
  const file = openSync(path, READ);
  const found = fstatSync(file);
  if (found.isFile()) return { file, size: found.size };
  closeSync(file);
  throw usageError(`${path} is not a regular file`);
}

export function isMissing(error: unknown): boolean {
  const code = (error as NodeJS.ErrnoException | null)?.code;
  return code === 'ENOENT' || code === 'ENOTDIR';
}
