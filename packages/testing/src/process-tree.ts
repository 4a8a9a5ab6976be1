import { readdirSync, readFileSync } from 'node:fs';

/** Linux counts processor time in these for programs, whatever its own clock is. */
const TICKS_PER_SECOND = 100;

/** The ids of all processes that this one has started, and that those have started, each before its own. Linux only. */
export function processesBelow(root: number): number[] {
  const children = new Map<number, number[]>();
  for (const name of readdirSync('/proc')) {
    if (!/^\d+$/.test(name)) continue;
    const stat = statOf(Number(name));
    if (stat === null) continue;
    children.set(stat.parent, [...(children.get(stat.parent) ?? []), Number(name)]);
  }
  const below = (pid: number): number[] => (children.get(pid) ?? []).flatMap((child) => [child, ...below(child)]);
  return below(root);
}

/** Processor time, in seconds, of a process and all that it has started and that still runs. Linux only. */
export function treeCpuSeconds(root: number): number {
  return [root, ...processesBelow(root)].reduce((total, pid) => total + cpuSeconds(pid), 0);
}

/** Processor time, in seconds, of one process; 0 when there is no such process. Linux only. */
export function cpuSeconds(pid: number): number {
  return (statOf(pid)?.ticks ?? 0) / TICKS_PER_SECOND;
}

/** null for a process that is gone. */
function statOf(pid: number): { parent: number; ticks: number } | null {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'utf8');
    // "pid (command) state parent ..."; the command may hold blanks and parentheses.
    const fields = text.slice(text.lastIndexOf(')') + 2).split(' ');
    // The 12th and 13th field behind the command are the time as a user and in the system.
    return { parent: Number(fields[1]), ticks: Number(fields[11]) + Number(fields[12]) };
  } catch {
    return null;
  }
}
