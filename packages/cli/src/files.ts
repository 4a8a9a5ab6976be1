import type { FileHandle } from 'node:fs/promises';
import * as files from '@muser/service-kit';
import { usageError } from './exit.js';

/**
 * A small file's text; null when it is not there.
 * @throws ServiceError MESSAGE_TOO_LARGE beyond `maxBytes`, CONFIG_INVALID when it is no regular file or cannot be read
 */
export async function readText(path: string, maxBytes: number): Promise<string | null> {
  try {
    return await files.readSmallFile(path, maxBytes);
  } catch (error) {
    // A path that goes on below a file.
    if (isMissing((error as Error).cause)) return null;
    throw error;
  }
}

/** Opens a file of any size to be read. Throws CliError INVALID_REQUEST for a folder, a pipe or a device. */
export async function openRegular(path: string): Promise<FileHandle> {
  return (await files.openRegular(path)) ?? refuse(path);
}

/** Like openRegular, for readers that do not wait; returns the descriptor and the bytes that the file has. */
export function openRegularSync(path: string): { file: number; size: number } {
  return files.openRegularSync(path) ?? refuse(path);
}

function refuse(path: string): never {
  throw usageError(`${path} is not a regular file`);
}

export function isMissing(error: unknown): boolean {
  const code = (error as NodeJS.ErrnoException | null)?.code;
  return code === 'ENOENT' || code === 'ENOTDIR';
}
