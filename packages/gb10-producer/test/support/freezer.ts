import { accessSync, constants, rmdirSync } from 'node:fs';
import { mkdtemp, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

import { until } from './test-bed.js';

const FREEZER = '/sys/fs/cgroup/freezer';

/** As root, where the kernel still has cgroups of version 1. */
export function canFreeze(): boolean {
  try {
    accessSync(join(FREEZER, 'cgroup.procs'), constants.W_OK);
    return true;
  } catch {
    return false;
  }
}

/**
 * Puts a process to uninterruptible sleep, as a GPU driver that hangs does: SIGKILL ends it only when it is thawed.
 * @returns what thaws it; may be called more than once
 */
export async function freeze(pid: number): Promise<() => Promise<void>> {
  const group = await mkdtemp(`${FREEZER}/muser-test-`);
  await writeFile(join(group, 'cgroup.procs'), String(pid));
  await writeFile(join(group, 'freezer.state'), 'FROZEN');
  let thawed: Promise<void> | null = null;
  return () => (thawed ??= thaw(group));
}

async function thaw(group: string): Promise<void> {
  await writeFile(join(group, 'freezer.state'), 'THAWED');
  // Not before its last process is gone.
  await until(() => removed(group));
}

function removed(group: string): boolean {
  try {
    rmdirSync(group);
    return true;
  } catch {
    return false;
  }
}
