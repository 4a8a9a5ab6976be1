import { constants } from 'node:fs';
import { chmod, link, mkdir, open, rename, stat, unlink } from 'node:fs/promises';
import { randomUUID } from 'node:crypto';
import { join } from 'node:path';
import { MuserError } from '@muser/protocol';

const FILE_MODE = 0o600;
const FOLDER_MODE = 0o700;
const OTHERS = 0o077;
const MAX_FILE_BYTES = 64 * 1024;

/** Makes the folder (mode 0700) or tightens one that exists. */
export async function makePrivateFolder(dir: string): Promise<void> {
  await mkdir(dir, { recursive: true, mode: FOLDER_MODE });
  await chmod(dir, FOLDER_MODE);
}

/** Writes a file of mode 0600 so that a crash leaves the old one or the new one, never a part. */
export async function replaceFile(dir: string, name: string, content: string): Promise<void> {
  const temporary = await writeTemporary(dir, name, content);
  try {
    await rename(temporary, join(dir, name));
  } catch (error) {
    await unlink(temporary);
    throw error;
  }
  await syncFolder(dir);
}

/** Like replaceFile, but leaves a file that exists as it is. @returns whether this call made the file */
export async function createFileOnce(dir: string, name: string, content: string): Promise<boolean> {
  const temporary = await writeTemporary(dir, name, content);
  try {
    await link(temporary, join(dir, name));
  } catch (error) {
    if (errorCode(error) === 'EEXIST') return false;
    throw error;
  } finally {
    await unlink(temporary);
  }
  await syncFolder(dir);
  return true;
}

/**
 * Reads a file that only its owner may read.
 *
 * @returns null when it does not exist
 * @throws MuserError CONFIG_INVALID when others can read the file or its folder, or it is too large
 */
export async function readPrivateFile(dir: string, name: string): Promise<string | null> {
  const path = join(dir, name);
  const file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW).catch((error: unknown) => {
    if (errorCode(error) === 'ENOENT') return null;
    throw new MuserError('CONFIG_INVALID', `${path} cannot be opened (${errorCode(error)})`, { cause: error });
  });
  if (file === null) return null;
  try {
    refuseOthers(dir, (await stat(dir)).mode, FOLDER_MODE);
    const { mode, size } = await file.stat();
    refuseOthers(path, mode, FILE_MODE);
    if (size > MAX_FILE_BYTES) {
      throw new MuserError('CONFIG_INVALID', `${path} has ${size} bytes; at most ${MAX_FILE_BYTES} are allowed`);
    }
    return await file.readFile('utf8');
  } finally {
    await file.close();
  }
}

function refuseOthers(path: string, mode: number, wanted: number): void {
  if ((mode & OTHERS) === 0) return;
  const found = (mode & 0o777).toString(8).padStart(4, '0');
  const advice = wanted.toString(8);
  throw new MuserError(
    'CONFIG_INVALID',
    `${path} has mode ${found}: other users can reach the node's private keys; run chmod ${advice} ${path}`,
  );
}

async function writeTemporary(dir: string, name: string, content: string): Promise<string> {
  const path = join(dir, `.${name}.${randomUUID()}`);
  const file = await open(path, 'wx', FILE_MODE);
  try {
    await file.writeFile(content, 'utf8');
    await file.sync();
  } finally {
    await file.close();
  }
  return path;
}

/** Makes a rename or link durable. */
async function syncFolder(dir: string): Promise<void> {
  const folder = await open(dir, constants.O_RDONLY);
  try {
    await folder.sync();
  } finally {
    await folder.close();
  }
}

function errorCode(error: unknown): string {
  return error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : 'unknown';
}
