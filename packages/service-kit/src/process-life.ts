import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { promisify } from 'node:util';

const execFileAsync = promisify(execFile);

/** Whether a process with this number runs; one that has ended and only waits to be reaped does not. */
export async function isProcessRunning(pid: number): Promise<boolean> {
  return hasProcess(pid) && (await startOfProcess(pid)) !== 'ended';
}

function hasProcess(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}

/**
 * When a process started, as text to compare; null when the system does not say. 'ended' for one that is dead and only
 * waits to be reaped, which in a container may be for ever.
 */
export async function startOfProcess(pid: number): Promise<string | null> {
  try {
    if (process.platform === 'linux') {
      const stat = await readFile(`/proc/${pid}/stat`, 'utf8');
      // The command name in parentheses may hold anything, so fields are counted after it: state, then 18 others.
      const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
      return fields[0] === 'Z' || fields[0] === 'X' ? 'ended' : (fields[19] ?? null);
    }
    const { stdout } = await execFileAsync('ps', ['-o', 'stat=,lstart=', '-p', String(pid)], { timeout: 5_000 });
    const [state = '', ...started] = stdout.trim().split(/\s+/);
    return state.startsWith('Z') ? 'ended' : started.join(' ') || null;
  } catch {
    return null;
  }
}
