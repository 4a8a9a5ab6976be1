import { existsSync, readdirSync, readFileSync, readlinkSync, rmSync } from 'node:fs';
import { processesBelow } from '@muser/testing';
import type { Launch } from '../test/support/nodes.js';
import { eventually, isAlive } from '../test/support/muser.js';
import type { Probed } from './probe.js';

const PROBE = new URL('probe.js', import.meta.url).href;

/** What a process holds at one moment, when it has nothing to do. */
export interface Sample {
  readonly pid: number;
  /** With what it has started; bytes. */
  readonly residentBytes: number;
  readonly threads: number;
  readonly descriptors: number;
  /** By kind: socket, pipe, anon_inode, file. */
  readonly kinds: Readonly<Record<string, number>>;
  readonly node: Probed;
}

/** How a process is started so that it can be sampled. @param file where it writes what it holds */
export function probed(file: string): Launch {
  return { nodeFlags: ['--expose-gc', '--import', PROBE], env: { SOAK_PROBE_FILE: file } };
}

/** @param file as given to probed() */
export async function sample(pid: number, file: string): Promise<Sample> {
  rmSync(file, { force: true });
  process.kill(pid, 'SIGUSR2');
  await eventually(`process ${pid} says what it holds`, () => existsSync(file) || !isAlive(pid));
  if (!existsSync(file)) throw new Error(`process ${pid} has ended`);
  const node = JSON.parse(readFileSync(file, 'utf8')) as Probed;
  const tree = [pid, ...processesBelow(pid)];
  const kinds: Record<string, number> = {};
  for (const kind of descriptorsOf(pid)) kinds[kind] = (kinds[kind] ?? 0) + 1;
  return {
    pid,
    residentBytes: tree.reduce((sum, one) => sum + 1_024 * statusField(one, 'VmRSS'), 0),
    threads: statusField(pid, 'Threads'),
    descriptors: Object.values(kinds).reduce((sum, count) => sum + count, 0),
    kinds,
    node,
  };
}

function statusField(pid: number, name: string): number {
  try {
    const status = readFileSync(`/proc/${pid}/status`, 'utf8');
    return Number(new RegExp(`^${name}:\\s+(\\d+)`, 'm').exec(status)?.[1] ?? 0);
  } catch {
    return 0;
  }
}

function descriptorsOf(pid: number): string[] {
  return readdirSync(`/proc/${pid}/fd`).flatMap((name) => {
    try {
      const target = readlinkSync(`/proc/${pid}/fd/${name}`);
      return target.startsWith('/') ? 'file' : (target.split(':')[0] ?? 'other');
    } catch {
      // It was closed meanwhile.
      return [];
    }
  });
}

export const probeFileOf = (folder: string, name: string): string => `${folder}/${name}.probe.json`;
