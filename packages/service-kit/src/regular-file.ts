import { closeSync, constants, fstatSync, openSync } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';

/** Opening a pipe that nobody writes to would block a thread for good, which no signal could end. */
const READ = constants.O_RDONLY | constants.O_NONBLOCK;

/** Opens a file of any size to be read; null when it is a folder, a pipe or a device. @param flags more of open(2) */
export async function openRegular(path: string, flags = 0): Promise<FileHandle | null> {
  const file = await open(path, READ | flags);
  try {
    if ((await file.stat()).isFile()) return file;
  } catch (error) {
    await file.close();
    throw error;
  }
  await file.close();
  return null;
}

/** Like openRegular, for readers that do not wait; the descriptor and the bytes that the file has. */
export function openRegularSync(path: string): { file: number; size: number } | null {
  const file = openSync(path, READ);
  const found = fstatSync(file);
  if (found.isFile()) return { file, size: found.size };
  closeSync(file);
  return null;
}
