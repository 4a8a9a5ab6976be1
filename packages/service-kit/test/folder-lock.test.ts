import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readFile, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

import { afterEach, beforeEach, describe, expect, it } from 'vitest';

import { lockFolder, ServiceError, type FolderLock } from '../src/index.js';

const FIXTURE = fileURLToPath(new URL('fixtures/lock.mjs', import.meta.url));
let folder: string;
let children: ChildProcess[];
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'muser-lock-'));
  children = [];
});
afterEach(async () => {
  await Promise.all(children.map(kill));
  await rm(folder, { recursive: true });
});

async function kill(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  child.kill('SIGKILL');
  await once(child, 'exit');
}

/** The kernel needs a moment to end a process that was killed. */
async function untilTaken(): Promise<FolderLock> {
  for (;;) {
    try {
      return await lockFolder(folder);
    } catch (error) {
      if (!(error instanceof ServiceError) || error.code !== 'STATE_LOCKED') throw error;
    }
  }
}

async function otherProcess(): Promise<{ child: ChildProcess; said: string }> {
  const child = spawn(process.execPath, [FIXTURE, folder], { stdio: ['ignore', 'pipe', 'inherit'] });
  children.push(child);
  const [said] = (await once(createInterface(child.stdout), 'line')) as [string];
  return { child, said };
}

describe('lockFolder', () => {
  it('refuses a second holder and names the first', async () => {
    const lock = await lockFolder(folder);
    await expect(lockFolder(folder)).rejects.toMatchObject({
      code: 'STATE_LOCKED',
      message: expect.stringContaining(String(process.pid)) as string,
    });
    expect((await otherProcess()).said).toBe('STATE_LOCKED');
    await lock.release();
    expect(await readdir(folder)).toEqual([]);
    expect((await otherProcess()).said).toBe('locked');
  });

  it('takes over from a process that was killed', async () => {
    const { child, said } = await otherProcess();
    expect(said).toBe('locked');
    await expect(lockFolder(folder)).rejects.toMatchObject({ code: 'STATE_LOCKED' });
    await kill(child);
    const lock = await lockFolder(folder);
    expect(await readdir(folder)).toEqual(['lock']);
    await lock.release();
  });

  it('lets only one of several take over', async () => {
    await kill((await otherProcess()).child);
    const outcomes = await Promise.allSettled(Array.from({ length: 8 }, () => lockFolder(folder)));
    expect(outcomes.filter(({ status }) => status === 'fulfilled')).toHaveLength(1);
    for (const outcome of outcomes) {
      if (outcome.status === 'rejected') expect(outcome.reason).toMatchObject({ code: 'STATE_LOCKED' });
    }
    expect(await readdir(folder)).toEqual(['lock']);
  });

  it.runIf(process.platform === 'linux')('sees that a number has gone to another process', async () => {
    const lock = await lockFolder(folder);
    const path = join(folder, 'lock');
    const holder = JSON.parse(await readFile(path, 'utf8')) as { started: string };
    await writeFile(path, JSON.stringify({ ...holder, started: '1' }));
    const second = await lockFolder(folder);
    // The first holder must not remove the lock of the second.
    await lock.release();
    await expect(lockFolder(folder)).rejects.toMatchObject({ code: 'STATE_LOCKED' });
    await second.release();
  });

  it('takes over from a process that was killed and is not reaped', async () => {
    // The shell becomes a sleep, which never asks for the end of its child.
    const script = '"$0" "$1" "$2" & exec sleep 1000';
    const parent = spawn('sh', ['-c', script, process.execPath, FIXTURE, folder], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    children.push(parent);
    expect(await once(createInterface(parent.stdout), 'line')).toEqual(['locked']);
    const { pid } = JSON.parse(await readFile(join(folder, 'lock'), 'utf8')) as { pid: number };
    process.kill(pid, 'SIGKILL');
    // Signals to a dead process that is not reaped still succeed, so only the lock itself can tell.
    const lock = await untilTaken();
    await lock.release();
  });

  it('clears a guard that a killed process left', async () => {
    const dead = (await otherProcess()).child;
    await kill(dead);
    await writeFile(join(folder, 'lock.takeover'), await readFile(join(folder, 'lock')));
    const lock = await lockFolder(folder);
    expect(await readdir(folder)).toEqual(['lock']);
    await lock.release();
  });

  it.each(['{', 'null', ' '.repeat(4_097), '{"pid":1}'.padEnd(4_097)])(
    'replaces a file that is not a lock',
    async (text) => {
      await writeFile(join(folder, 'lock'), text);
      const lock = await lockFolder(folder);
      await lock.release();
      expect(await readdir(folder)).toEqual([]);
    },
  );
});
