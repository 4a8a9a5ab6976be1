import { randomBytes } from 'node:crypto';
import { constants } from 'node:fs';
import { chmod, type FileHandle, link, lstat, mkdir, open, rename, rm, stat } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';

import { ServiceError, type ServiceErrorCode } from './errors.js';
import { openRegular } from './regular-file.js';

const FILE_MODE = 0o600;
const FOLDER_MODE = 0o700;
const OTHERS = 0o077;
/** Secrets are short; whatever is longer is not one of ours. */
const MAX_PRIVATE_BYTES = 64 * 1024;
const BLOCK_BYTES = 64 * 1024;

/**
 * Replaces a file's content so that after a crash there is the old content or the new, never a mixture. The file gets
 * `mode` (default: readable by its owner alone).
 */
export async function writeFileAtomic(path: string, data: string | Uint8Array, mode = FILE_MODE): Promise<void> {
  await withTemporary(path, data, mode, (temporary) => rename(temporary, path));
}

/** Like writeFileAtomic, but leaves a file that exists as it is. @returns whether this call made the file */
export async function createFileOnce(path: string, data: string | Uint8Array): Promise<boolean> {
  try {
    await withTemporary(path, data, FILE_MODE, (temporary) => link(temporary, path));
    return true;
  } catch (error) {
    if (reasonOf(error) === 'EEXIST') return false;
    throw error;
  }
}

/** Makes a folder, with those above it, that only its owner may enter. An existing one is closed to others. */
export async function ensurePrivateFolder(path: string): Promise<void> {
  try {
    await makeFolders(path);
    const found = await stat(path);
    if ((found.mode & OTHERS) !== 0) await chmod(path, FOLDER_MODE);
  } catch (error) {
    const message = `the folder ${path} cannot be made or entered (${reasonOf(error)})`;
    throw new ServiceError('UNAVAILABLE', message, { cause: error });
  }
}

/** Which files a result may replace. */
export interface ResultKind {
  /** For messages: `the record of a qualification`. */
  readonly what: string;
  readonly maxBytes: number;
  /** Whether a file with this text is an earlier result. */
  readonly isEarlier: (text: string) => boolean;
}

/**
 * Finds out, before long work, whether its result can be written to `path` with writeFileAtomic: makes the folder, and
 * tries. Only an earlier result is replaced; a link, a device or another file that is there is somebody's.
 *
 * @throws ServiceError CONFIG_INVALID when it cannot, or must not, be written
 */
export async function prepareResultFile(path: string, kind: ResultKind): Promise<void> {
  if (path === '') throw new ServiceError('CONFIG_INVALID', `${kind.what} needs the path of a file`);
  try {
    await refuseForeignFile(path, kind);
    await makeFolders(dirname(path));
    await withTemporary(path, '', FILE_MODE, () => Promise.resolve());
  } catch (error) {
    if (error instanceof ServiceError) throw error;
    throw new ServiceError('CONFIG_INVALID', `${path} cannot be written (${reasonOf(error)})`, { cause: error });
  }
}

async function refuseForeignFile(path: string, { what, maxBytes, isEarlier }: ResultKind): Promise<void> {
  const found = await lstat(path).catch((error: unknown) => {
    if (reasonOf(error) === 'ENOENT') return null;
    throw error;
  });
  if (found === null) return;
  if (!found.isFile()) throw new ServiceError('CONFIG_INVALID', `${path} is there, and is not a regular file`);
  // Longer ones are not read: those are no results.
  const text = found.size > maxBytes ? null : await readSmallFile(path, maxBytes);
  if (text !== null && isEarlier(text)) return;
  throw new ServiceError('CONFIG_INVALID', `${path} is there, and is not ${what}: it is not replaced`);
}

/** mkdir with `recursive` never settles where a file system says ENOENT for a folder whose parent is there, as /proc does. */
async function makeFolders(path: string): Promise<void> {
  try {
    await makeFolder(path);
  } catch (error) {
    const parent = dirname(path);
    if (reasonOf(error) !== 'ENOENT' || parent === path || (await exists(parent))) throw error;
    await makeFolders(parent);
    // Once only: a link that leads nowhere is there and yet holds no folder.
    await makeFolder(path);
  }
}

/** Leaves what is there already as it is. */
async function makeFolder(path: string): Promise<void> {
  try {
    await mkdir(path, FOLDER_MODE);
  } catch (error) {
    if (reasonOf(error) !== 'EEXIST') throw error;
  }
}

async function exists(path: string): Promise<boolean> {
  return stat(path).then(
    () => true,
    () => false,
  );
}

/**
 * A small secret file's text; null when it does not exist. What is checked is what is read: the open file.
 *
 * @throws ServiceError CONFIG_INVALID when others than its owner can reach it or its folder, it is a symbolic link or
 *   longer than 64 KiB, or it cannot be read
 */
export async function readPrivateFile(path: string): Promise<string | null> {
  const file = await openToRead(path, constants.O_NOFOLLOW);
  if (file === null) return null;
  try {
    const folder = dirname(path);
    refuseOthers(folder, (await stat(folder)).mode, FOLDER_MODE);
    refuseOthers(path, (await file.stat()).mode, FILE_MODE);
    return await readCapped(file, { path, maxBytes: MAX_PRIVATE_BYTES, tooLong: 'CONFIG_INVALID' });
  } finally {
    await file.close();
  }
}

/**
 * A small file's text; null when it does not exist.
 *
 * @throws ServiceError MESSAGE_TOO_LARGE beyond `maxBytes`, CONFIG_INVALID when it is no regular file or cannot be read
 */
export async function readSmallFile(path: string, maxBytes: number): Promise<string | null> {
  const file = await openToRead(path);
  if (file === null) return null;
  try {
    return await readCapped(file, { path, maxBytes, tooLong: 'MESSAGE_TOO_LARGE' });
  } finally {
    await file.close();
  }
}

/** Null when it does not exist. @throws ServiceError CONFIG_INVALID when it is no regular file or cannot be opened */
async function openToRead(path: string, flags = 0): Promise<FileHandle | null> {
  let file: FileHandle | null;
  try {
    file = await openRegular(path, flags);
  } catch (error) {
    if (reasonOf(error) === 'ENOENT') return null;
    throw new ServiceError('CONFIG_INVALID', `${path} cannot be read (${reasonOf(error)})`, { cause: error });
  }
  if (file === null) throw new ServiceError('CONFIG_INVALID', `${path} is not a regular file`);
  return file;
}

interface Cap {
  readonly path: string;
  readonly maxBytes: number;
  readonly tooLong: ServiceErrorCode;
}

/** The size that a file says it has is not asked: it may grow, and that of a device or of a file in /proc is 0. */
async function readCapped(file: FileHandle, { path, maxBytes, tooLong }: Cap): Promise<string> {
  const blocks: Buffer[] = [];
  let length = 0;
  for (;;) {
    const block = Buffer.alloc(Math.min(BLOCK_BYTES, maxBytes + 1 - length));
    const { bytesRead } = await file.read(block);
    if (bytesRead === 0) return Buffer.concat(blocks).toString('utf8');
    length += bytesRead;
    if (length > maxBytes) throw new ServiceError(tooLong, `${path} is longer than ${maxBytes} bytes`);
    blocks.push(block.subarray(0, bytesRead));
  }
}

function refuseOthers(path: string, mode: number, wanted: number): void {
  if ((mode & OTHERS) === 0) return;
  const found = (mode & 0o777).toString(8).padStart(4, '0');
  const advice = `run chmod ${wanted.toString(8)} ${path}`;
  throw new ServiceError('CONFIG_INVALID', `${path} has mode ${found}: other users can reach a secret; ${advice}`);
}

/** Writes a file beside `path`, hands it to `place`, and removes it unless it was moved. */
async function withTemporary(
  path: string,
  data: string | Uint8Array,
  mode: number,
  place: (temporary: string) => Promise<void>,
): Promise<void> {
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
    await place(temporary);
  } finally {
    await rm(temporary, { force: true });
  }
  await syncFolder(folder);
}

/** Makes a rename or link durable. */
async function syncFolder(folder: string): Promise<void> {
  const handle = await open(folder, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

function reasonOf(error: unknown): string {
  return (error as NodeJS.ErrnoException).code ?? 'unknown reason';
}
