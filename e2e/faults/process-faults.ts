import { execFile } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import { processesBelow } from '@muser/testing';
import type { ProcessFault, Target } from './cells.js';
import { BRIEF_MS, type Undo } from './happenings.js';
import type { Role, System } from './system.js';
import { until } from './until.js';

const CLOCKS: Readonly<Record<string, string>> = { 'clock +1 h': '+1h', 'clock -1 h': '-1h', 'clock +4 min': '+4m' };
const FILLER = 'filler';
const FILLER_BYTES = 1 << 20;

/** What such a fault needs of the machine; null when it is there. */
export function whatIsMissing(fault: ProcessFault, system: System): string | null {
  if (fault === 'disk full' && !system.hasSmallDisks) return 'only root can mount a small disk';
  if (fault in CLOCKS && system.faketime === null) return 'faketime is missing';
  return null;
}

/**
 * What has to be so before the cell begins: a clock can only be changed in a process that was started for it, and a process
 * that is started anew meanwhile takes longer than a decoder waits.
 */
export async function prepareProcess(fault: ProcessFault, target: Target, system: System): Promise<Undo | null> {
  if (fault === 'restart') {
    await system.restart('decoder', 'patient');
    return () => system.restart('decoder');
  }
  if (!(fault in CLOCKS)) return null;
  const role = roleOf(target);
  await system.restart(role, 'clock');
  return () => system.restart(role);
}

/**
 * Does something to a process.
 *
 * @param letGo lets the transfer go on, which stands still
 * @returns what undoes it
 */
export async function hitProcess(
  fault: ProcessFault,
  target: Target,
  system: System,
  letGo: () => void,
): Promise<Undo> {
  const pids = pidsOf(target, system);
  const signalAll = (signal: NodeJS.Signals): void => pids.forEach((pid) => process.kill(pid, signal));
  const nothing: Undo = async () => undefined;
  switch (fault) {
    case 'SIGKILL':
      return kill(target, pids, system, letGo);
    case 'restart':
      // The list that the decoder gets is that of a coordinator that has not heard the producer yet.
      system.toProducer.goDown('starting');
      await system.restart(roleOf(target));
      system.toProducer.goDown(system.child(roleOf(target)).pid);
      await untilUnlisted(system);
      letGo();
      return nothing;
    case 'SIGSTOP':
    case 'brief SIGSTOP':
      signalAll('SIGSTOP');
      letGo();
      if (fault === 'SIGSTOP') return async () => signalAll('SIGCONT');
      await delay(BRIEF_MS);
      signalAll('SIGCONT');
      return nothing;
    case 'no descriptors': {
      const undo = await takeDescriptors(pids[0] ?? 0);
      letGo();
      return undo;
    }
    case 'disk full': {
      const undo = await fillDisk(system.folderOf(roleOf(target)));
      letGo();
      return undo;
    }
    case 'clock +1 h':
    case 'clock -1 h':
    case 'clock +4 min':
      await system.setClock(roleOf(target), CLOCKS[fault] ?? '+0');
      letGo();
      return nothing;
  }
}

/** The decoder has a list in which no producer gets requests. */
export async function untilUnlisted(system: System): Promise<void> {
  await until('the decoder sees the coordinator, and no producer', async () => {
    const { coordinator, producers } = await system.health('decoder');
    return coordinator === 'connected' && producers.length === 0;
  });
}

const roleOf = (target: Target): Role => (target === 'vLLM worker' ? 'producer' : target);

function pidsOf(target: Target, system: System): number[] {
  const { pid } = system.child(roleOf(target));
  return target === 'vLLM worker' ? processesBelow(pid) : [pid];
}

async function kill(target: Target, pids: readonly number[], system: System, letGo: () => void): Promise<Undo> {
  if (target === 'vLLM worker') {
    process.kill(pids[0] ?? 0, 'SIGKILL');
    letGo();
    // The producer starts it again by itself.
    return async () => undefined;
  }
  await system.child(target).kill();
  letGo();
  return () => system.restart(target);
}

/** It can open nothing more: neither a file nor a connection. */
async function takeDescriptors(pid: number): Promise<Undo> {
  const before = await limitOf(pid);
  // A new one takes the lowest number that is free; those above it stay open.
  const taken = new Set(readdirSync(`/proc/${pid}/fd`).map(Number));
  let free = 0;
  while (taken.has(free)) free += 1;
  await setLimit(pid, `${free}:`);
  return () => setLimit(pid, `${before}:`);
}

async function limitOf(pid: number): Promise<string> {
  const args = ['--pid', String(pid), '--nofile', '--output', 'SOFT', '--noheadings'];
  return (await promisify(execFile)('prlimit', args)).stdout.trim();
}

async function setLimit(pid: number, limit: string): Promise<void> {
  await promisify(execFile)('prlimit', ['--pid', String(pid), `--nofile=${limit}`]);
}

async function fillDisk(folder: string): Promise<Undo> {
  const isFull = async (nth: number): Promise<boolean> => {
    try {
      await writeFile(join(folder, `${FILLER}-${nth}`), Buffer.alloc(FILLER_BYTES));
      return false;
    } catch {
      return true;
    }
  };
  let files = 0;
  await until('the disk is full', async () => isFull(files++));
  return async () => {
    for (let nth = 0; nth < files; nth += 1) await rm(join(folder, `${FILLER}-${nth}`), { force: true });
  };
}
