import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';

const MAIN = fileURLToPath(new URL('../../dist/main.js', import.meta.url));

export interface Finished {
  code: number | null;
  stdout: string;
  stderr: string;
}

/** Runs the producer's command line to its end. */
export async function runMain(args: string[], input = ''): Promise<Finished> {
  const child = spawn(process.execPath, [MAIN, ...args], { stdio: 'pipe' });
  child.stdin.on('error', () => undefined).end(input);
  const [stdout, stderr, [code]] = await Promise.all([
    text(child.stdout),
    text(child.stderr),
    once(child, 'exit') as Promise<[number | null]>,
  ]);
  return { code, stdout, stderr };
}

/** Starts the producer and waits for its first line on standard output. */
export async function startMain(args: string[]): Promise<{ child: ChildProcess; ready: Record<string, unknown> }> {
  const child = spawn(process.execPath, [MAIN, ...args], { stdio: ['pipe', 'pipe', 'inherit'] });
  for await (const line of createInterface({ input: child.stdout })) {
    return { child, ready: JSON.parse(line) as Record<string, unknown> };
  }
  throw new Error('the producer ended without a line');
}

/** The exit code of a process that has been told to end. */
export async function exitOf(child: ChildProcess): Promise<number | null> {
  if (child.exitCode !== null || child.signalCode !== null) return child.exitCode;
  const [code] = (await once(child, 'exit')) as [number | null];
  return code;
}
