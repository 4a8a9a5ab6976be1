import { readdirSync, readFileSync } from 'node:fs';

/** Linux counts processor time in these for programs, whatever its own clock is. */
const TICKS_PER_SECOND = 100;

/** Processor time, in seconds, of a process and all that it has started. Linux only. */
export function treeCpuSeconds(root: number): number {
  const children = new Map<number, number[]>();
  const ticks = new Map<number, number>();
  for (const name of readdirSync('/proc')) {
    if (!/^\d+$/.test(name)) continue;
    const fields = statOf(name);
    if (fields === null) continue;
    // Behind the name: state, parent.
    const parent = Number(fields[1]);
    children.set(parent, [...(children.get(parent) ?? []), Number(name)]);
    ticks.set(Number(name), ticksOf(fields));
  }
  const sum = (pid: number): number =>
    (children.get(pid) ?? []).reduce((total, child) => total + sum(child), ticks.get(pid) ?? 0);
  return sum(root) / TICKS_PER_SECOND;
}

/** Processor time, in seconds, of one process. */
export function cpuSeconds(pid: number): number {
  return ticksOf(statOf(String(pid)) ?? []) / TICKS_PER_SECOND;
}

/** User and system time are the 12th and 13th field behind the name. */
const ticksOf = (fields: string[]): number => Number(fields[11] ?? 0) + Number(fields[12] ?? 0);

function statOf(pid: string): string[] | null {
  try {
    // The name is in brackets and may have blanks and brackets in it.
    const text = readFileSync(`/proc/${pid}/stat`, 'utf8');
    return text.slice(text.lastIndexOf(')') + 2).split(' ');
  } catch {
    return null;
  }
}
