import { createHash } from 'node:crypto';
import { constants } from 'node:fs';
import { copyFile, link, lstat, mkdir, rename, rm } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { CliError, EXIT } from '../exit.js';
import { isMissing, openRegular } from '../files.js';
import { PartFile, type Expected } from './transfer/part-file.js';

const READ_BYTES = 1 << 20;

/** Hears of bytes as they are looked at, for a progress line. */
export type OnBytes = (count: number) => void;

/** SHA-256 of a file as lower-case hexadecimal digits. */
export async function digestOf(path: string, signal: AbortSignal, onBytes: OnBytes): Promise<string> {
  const hash = createHash('sha256');
  const block = Buffer.allocUnsafe(READ_BYTES);
  const handle = await openRegular(path);
  try {
    for (;;) {
      signal.throwIfAborted();
      const { bytesRead } = await handle.read(block, 0, block.length);
      if (bytesRead === 0) return hash.digest('hex');
      hash.update(block.subarray(0, bytesRead));
      onBytes(bytesRead);
    }
  } finally {
    await handle.close();
  }
}

/** Makes the folder of `path` below `root`, and refuses a symbolic link on the way, which could lead out of it. */
export async function makeFolderFor(root: string, path: string): Promise<void> {
  const segments = path.split('/').slice(0, -1);
  let folder = root;
  for (const segment of segments) {
    folder = join(folder, segment);
    await mkdir(folder).catch((error: unknown) => {
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
    });
    if (!(await lstat(folder)).isDirectory()) throw notAFolder(folder);
  }
}

function notAFolder(path: string): CliError {
  return new CliError(EXIT.failed, 'PERMISSION_DENIED', `${path} is a link or a file where the model needs a folder`, {
    advice: 'Remove it, or pull into another folder with --to.',
  });
}

/**
 * Puts a file of this machine to `destination` when it is the expected one: as a clone that shares its blocks, else as a
 * hard link, else as a copy. What is placed is what was hashed. False when the digest is another.
 *
 * @param temporary a path on the same file system as the destination, which nobody else uses
 */
export async function placeLocal(
  origin: string,
  destination: string,
  temporary: string,
  expected: Expected,
  signal: AbortSignal,
  onBytes: OnBytes,
): Promise<boolean> {
  await rm(temporary, { force: true });
  if (!(await cloneOrLink(origin, temporary))) {
    return copyVerified(origin, destination, temporary, expected, signal, onBytes);
  }
  try {
    if ((await lstat(temporary)).size !== expected.size) return false;
    if ((await digestOf(temporary, signal, onBytes)) !== expected.sha256) return false;
    await mkdir(dirname(destination), { recursive: true });
    // rename() does nothing when both names are links to one file, so the old name goes first.
    await rm(destination, { force: true });
    await rename(temporary, destination);
    return true;
  } finally {
    await rm(temporary, { force: true });
  }
}

async function cloneOrLink(origin: string, temporary: string): Promise<boolean> {
  try {
    await copyFile(origin, temporary, constants.COPYFILE_FICLONE_FORCE | constants.COPYFILE_EXCL);
    return true;
  } catch (error) {
    if (isMissing(error)) return false;
    await rm(temporary, { force: true });
  }
  try {
    await link(origin, temporary);
    return true;
  } catch {
    // Another file system, or a file of another user: only a copy is left.
    return false;
  }
}

async function copyVerified(
  origin: string,
  destination: string,
  temporary: string,
  expected: Expected,
  signal: AbortSignal,
  onBytes: OnBytes,
): Promise<boolean> {
  const source = await openRegular(origin);
  try {
    const part = await PartFile.open(temporary, expected, signal, onBytes);
    try {
      const block = Buffer.allocUnsafe(READ_BYTES);
      for (;;) {
        signal.throwIfAborted();
        const { bytesRead } = await source.read(block, 0, block.length);
        if (bytesRead === 0 || part.length + bytesRead > expected.size) break;
        await part.append(block.subarray(0, bytesRead));
        onBytes(bytesRead);
      }
      if (!part.matches()) {
        await part.discard();
        return false;
      }
      await part.publish(destination);
      return true;
    } catch (error) {
      await part.discard();
      throw error;
    }
  } finally {
    await source.close();
  }
}
