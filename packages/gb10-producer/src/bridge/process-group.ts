import { readdirSync, readFileSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';

import { MuserError } from '@muser/protocol';

/** How long a group of killed processes may take to be gone; the driver may free a GPU's memory only then. */
const GONE_LIMIT_MS = 20_000;
const POLL_MS = 25;
const OUT_OF_FILES: ReadonlySet<string> = new Set(['EMFILE', 'ENFILE']);

/** A group that outlives SIGKILL: one of its processes waits in a driver, so its memory is not free either. */
export class StuckGroupError extends MuserError {
  readonly leader: number;

  constructor(leader: number, cause?: unknown) {
    super('ENGINE_FAILED', `process group ${leader} of the vLLM worker is still there although it was killed`, {
      cause,
    });
    this.leader = leader;
  }
}

/** Ends the whole group and waits until it is gone. @throws StuckGroupError when it is still there after `limitMs` */
export async function killGroup(leader: number, limitMs: number = GONE_LIMIT_MS): Promise<void> {
  const deadline = performance.now() + limitMs;
  signalGroup(leader, 'SIGKILL');
  while (groupLives(leader)) {
    if (performance.now() >= deadline) throw new StuckGroupError(leader);
    await delay(POLL_MS);
    signalGroup(leader, 'SIGKILL');
  }
}

/** Whether any process of the group is left; true as well while that cannot be found out. */
export function groupLives(leader: number): boolean {
  if (!signalGroup(leader, 0)) return false;
  return process.platform !== 'linux' || hasMembers(leader);
}

/**
 * When a process was started, in the kernel's ticks since the boot of this one: with it, a process id is not mistaken for
 * an earlier process that had the same. null when there is no such process, or where the kernel does not tell.
 */
export function startTimeOf(pid: number): number | null {
  return statOf(String(pid))?.startTime ?? null;
}

function signalGroup(leader: number, signal: NodeJS.Signals | 0): boolean {
  try {
    process.kill(-leader, signal);
    return true;
  } catch {
    return false;
  }
}

/** Processes that have ended but were not reaped keep the group's number in use (a container without an init): they do not count. */
function hasMembers(leader: number): boolean {
  try {
    return readdirSync('/proc').some((name) => {
      const stat = /^\d+$/.test(name) ? statOf(name) : null;
      return stat !== null && stat.group === leader && stat.state !== 'Z' && stat.state !== 'X';
    });
  } catch {
    return true;
  }
}

/** null when there is no such process, or it is not shown to us. @throws when no file can be opened any more */
function statOf(pid: string): { state: string; group: number; startTime: number } | null {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
    // "pid (command) state parent group ..."; the command may hold blanks and parentheses.
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    return { state: fields[0] ?? '', group: Number(fields[2]), startTime: Number(fields[19]) };
  } catch (error) {
    if (OUT_OF_FILES.has((error as NodeJS.ErrnoException).code ?? '')) throw error;
    return null;
  }
}
