import { randomBytes } from 'node:crypto';
import { link, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

import { ServiceError } from './errors.js';
import { readSmallFile } from './files.js';
import { isProcessRunning, startOfProcess } from './process-life.js';

const MAX_LOCK_BYTES = 4_096;

/** The right to be the only process that uses a folder. */
export interface FolderLock {
  release(): Promise<void>;
}

/** What the lock file says. `started` tells the process from a later one that was given the same number. */
interface Holder {
  pid: number;
  started: string;
  token: string;
}

/**
 * Takes `folder/lock`, or throws STATE_LOCKED with the number of the process that has it. The lock of a process that is
 * gone (killed, power cut) is taken over. For one machine: processes on other machines are not seen.
 */
export async function lockFolder(folder: string): Promise<FolderLock> {
  const path = join(folder, 'lock');
  const mine: Holder = {
    pid: process.pid,
    started: (await startOfProcess(process.pid)) ?? '',
    token: randomBytes(12).toString('hex'),
  };
  try {
    if (!(await createExclusively(path, mine))) await takeOver(path, mine);
  } catch (error) {
    if (error instanceof ServiceError) throw error;
    const reason = (error as NodeJS.ErrnoException).code ?? 'unknown reason';
    throw new ServiceError('UNAVAILABLE', `nothing can be written in ${folder} (${reason})`, { cause: error });
  }
  return {
    async release() {
      if ((await readHolder(path))?.token === mine.token) await rm(path, { force: true });
    },
  };
}

/**
 * Replaces the lock of a dead process. Only the process that has made `lock.takeover` may replace a lock, so that two
 * that start at once cannot both take it.
 */
async function takeOver(path: string, mine: Holder): Promise<void> {
  const guard = `${path}.takeover`;
  refuseIfAlive(path, await livingHolder(path));
  if (!(await createExclusively(guard, mine))) {
    refuseIfAlive(path, await livingHolder(guard));
    await rm(guard, { force: true });
    if (!(await createExclusively(guard, mine))) refuseIfAlive(path, await readHolder(guard));
  }
  try {
    // Somebody may have taken the lock over between the first look and the guard.
    refuseIfAlive(path, await livingHolder(path));
    const temporary = `${path}.${mine.token}`;
    await writeFile(temporary, JSON.stringify(mine), { mode: 0o600, flag: 'wx' });
    await rename(temporary, path);
  } finally {
    await rm(guard, { force: true });
  }
}

function refuseIfAlive(path: string, holder: Holder | null): void {
  if (holder === null) return;
  throw new ServiceError(
    'STATE_LOCKED',
    `${path} is held by the running process ${holder.pid}: stop it, or use another state folder`,
  );
}

/** Creates the file with its whole content in one step; false when it is there already. */
async function createExclusively(path: string, holder: Holder): Promise<boolean> {
  const temporary = `${path}.${holder.token}`;
  await writeFile(temporary, JSON.stringify(holder), { mode: 0o600, flag: 'wx' });
  try {
    await link(temporary, path);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false;
    throw error;
  } finally {
    await rm(temporary, { force: true });
  }
}

async function livingHolder(path: string): Promise<Holder | null> {
  const holder = await readHolder(path);
  if (holder === null || !(await isProcessRunning(holder.pid))) return null;
  const started = await startOfProcess(holder.pid);
  // Without a start time on either side the number alone has to do, and the cautious answer is: alive.
  const isSameProcess = started === null || holder.started === '' || started === holder.started;
  return isSameProcess ? holder : null;
}

/** Null when the file is not there or is not a lock: nobody that runs wrote it, because locks appear complete. */
async function readHolder(path: string): Promise<Holder | null> {
  try {
    const text = await readSmallFile(path, MAX_LOCK_BYTES);
    if (text === null) return null;
    const value = JSON.parse(text) as Partial<Holder> | null;
    if (typeof value?.pid !== 'number' || !Number.isInteger(value.pid) || value.pid <= 0) return null;
    return { pid: value.pid, started: String(value.started ?? ''), token: String(value.token ?? '') };
  } catch (error) {
    if (error instanceof SyntaxError) return null;
    if (error instanceof ServiceError && error.code === 'MESSAGE_TOO_LARGE') return null;
    throw error;
  }
}
