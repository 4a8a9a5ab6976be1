import type { Readable } from 'node:stream';
import { fileURLToPath } from 'node:url';
import { execa, type Options, type ResultPromise } from 'execa';

const MAIN = fileURLToPath(new URL('../../dist/main.js', import.meta.url));

/** Nothing of the developer's own system may decide how a test ends. */
export const CLEAN_ENV = { PATH: process.env['PATH'] ?? '', HOME: '/nonexistent' };

/** Starts the built CLI as its users do. A run that takes longer than 30 s fails. */
export function startCli(args: readonly string[], options: Options = {}): ResultPromise<Options> {
  const all: Options = {
    reject: false,
    timeout: 30_000,
    killSignal: 'SIGKILL',
    extendEnv: false,
    stdin: 'ignore',
    ...options,
    env: { ...CLEAN_ENV, ...options.env },
  };
  return execa(process.execPath, [MAIN, ...args], all);
}

/** Standard output of a child that has one. */
export function stdoutOf(child: ResultPromise<Options>): Readable {
  if (child.stdout === null || child.stdout === undefined) throw new Error('the child has no standard output');
  return child.stdout;
}

export interface CliRun {
  exitCode: number | undefined;
  stdout: string;
  stderr: string;
}

export async function runCli(args: readonly string[], options: Options = {}): Promise<CliRun> {
  const { exitCode, stdout, stderr } = await startCli(args, options);
  return { exitCode, stdout: String(stdout), stderr: String(stderr) };
}
