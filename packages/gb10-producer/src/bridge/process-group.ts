import { readdirSync, readFileSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';

/** How long a group of killed processes may take to be gone; the driver may free a GPU's memory only then. */
const GONE_LIMIT_MS = 20_000;
const POLL_MS = 25;

/** Ends the whole group and waits until it is gone. */
export async function killGroup(leader: number): Promise<void> {
  const deadline = performance.now() + GONE_LIMIT_MS;
  signalGroup(leader, 'SIGKILL');
  while (groupLives(leader) && performance.now() < deadline) {
    await delay(POLL_MS);
    signalGroup(leader, 'SIGKILL');
  }
}

/** Whether any process of the group is left. */
export function groupLives(leader: number): boolean {
  if (!signalGroup(leader, 0)) return false;
  return process.platform !== 'linux' || membersOf(leader).length > 0;
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
function membersOf(leader: number): string[] {
  return readdirSync('/proc').filter((name) => {
    const stat = /^\d+$/.test(name) ? statOf(name) : null;
    return stat !== null && stat.group === leader && stat.state !== 'Z' && stat.state !== 'X';
  });
}

function statOf(pid: string): { state: string; group: number; startTime: number } | null {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
    // "pid (command) state parent group ..."; the command may hold blanks and parentheses.
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    return { state: fields[0] ?? '', group: Number(fields[2]), startTime: Number(fields[19]) };
  } catch {
    return null;
  }
}
