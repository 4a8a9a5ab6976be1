import { readFileSync } from 'node:fs';
import { createInterface, type Interface } from 'node:readline';
import { setTimeout as delay } from 'node:timers/promises';
import { execa, type Options, type ResultPromise } from 'execa';
import { inCheckout } from './checkout.js';

const MAIN = inCheckout('packages/cli/dist/main.js');
/** For a busy machine: what takes this long has failed. */
const LIMIT_MS = 180_000;

/** Starts the built CLI, away from whatever the developer's own system has. */
export function startMuser(args: readonly string[], options: Options = {}): ResultPromise<Options> {
  const all: Options = {
    reject: false,
    extendEnv: false,
    env: { PATH: process.env['PATH'] ?? '', HOME: '/nonexistent' },
    stdin: 'ignore',
    ...options,
  };
  return execa(process.execPath, [MAIN, ...args], all);
}

export interface MuserRun {
  exitCode: number | undefined;
  stdout: string;
  stderr: string;
}

/** Runs the built CLI to its end. */
export async function muser(args: readonly string[], options: Options = {}): Promise<MuserRun> {
  const { exitCode, stdout, stderr } = await startMuser(args, { timeout: LIMIT_MS, killSignal: 'SIGKILL', ...options });
  return { exitCode, stdout: String(stdout), stderr: String(stderr) };
}

export interface Ready {
  ready: true;
  decoder: string;
  coordinator: string;
  pids: { coordinator: number; producer: number; decoder: number };
}

/** A running `muser dev --json`. */
export class Dev {
  private constructor(
    readonly state: string,
    readonly pid: number,
    readonly ready: Ready,
    private readonly child: ReturnType<typeof startMuser>,
    private readonly messages: string[],
  ) {}

  static async start(state: string, ...flags: string[]): Promise<Dev> {
    const child = startMuser(['dev', '--json', '--state', state, '--port', '0', ...flags], { buffer: false });
    const messages: string[] = [];
    lines(child.stderr).on('line', (line) => messages.push(line));
    const line = await Promise.race([
      new Promise<string>((resolve) => lines(child.stdout).once('line', resolve)),
      child.then(() => {
        throw new Error(`muser dev ended:\n${messages.join('\n')}`);
      }),
    ]);
    return new Dev(state, child.pid ?? 0, JSON.parse(line) as Ready, child, messages);
  }

  get pids(): number[] {
    return Object.values(this.ready.pids);
  }

  /** What it has said on standard error until now. */
  get log(): string {
    return this.messages.join('\n');
  }

  kill(signal: NodeJS.Signals): void {
    this.child.kill(signal);
  }

  /** The exit code, once it has ended. */
  async ended(): Promise<number | undefined> {
    return (await this.child).exitCode;
  }

  /** Waits until it has said something like this. */
  async said(text: RegExp): Promise<void> {
    await eventually(`muser dev says ${String(text)}`, () => this.messages.some((message) => text.test(message)));
  }

  /** For clean-up: ends it and everything that it started, whatever happened before. */
  async destroy(): Promise<void> {
    this.child.kill('SIGKILL');
    for (const pid of this.pids) if (isAlive(pid)) process.kill(pid, 'SIGKILL');
    await this.child;
    await eventually('the processes end', () => !this.pids.some(isAlive));
  }
}

function lines(stream: NodeJS.ReadableStream | null): Interface {
  if (stream === null) throw new Error('no output');
  return createInterface({ input: stream });
}

/** Waits until a stream has said something like this; the stream goes on being read. Rejects when it ends before. */
export async function heard(stream: NodeJS.ReadableStream | null, text: RegExp): Promise<void> {
  if (stream === null) throw new Error('no output');
  let said = '';
  await new Promise<void>((resolve, reject) => {
    stream.on('data', (data: Buffer) => {
      said += data.toString();
      if (text.test(said)) resolve();
    });
    stream.once('end', () => reject(new Error(`it never said ${String(text)}: ${said}`)));
  });
}

/** A process that has ended but that nobody has reaped does not count. */
export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return process.platform !== 'linux' || !/^\d+ \(.*\) Z/s.test(readFileSync(`/proc/${pid}/stat`, 'utf8'));
  } catch {
    return false;
  }
}

/** Waits for a condition that nothing announces, at most three minutes. */
export async function eventually(what: string, condition: () => boolean | Promise<boolean>): Promise<void> {
  const deadline = performance.now() + LIMIT_MS;
  while (!(await condition())) {
    if (performance.now() > deadline) throw new Error(`it did not happen that ${what}`);
    await delay(25);
  }
}
