import { spawn, type ChildProcess } from 'node:child_process';
import { open, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { inCheckout } from '../test/support/checkout.js';

export type Program = 'coordinator' | 'gb10-producer' | 'mac-decoder';

/** What a process says when it can be used. */
export interface Ready {
  readonly nodeId: string;
  /** Of a coordinator (operator API) and a decoder. */
  readonly http?: string;
  /** Of a coordinator, for decoders. */
  readonly grpc?: string;
  /** Of a producer. */
  readonly address?: string;
}

export interface ChildSpec {
  readonly program: Program;
  /** Its state folder. */
  readonly folder: string;
  readonly logFile: string;
  readonly settings: Readonly<Record<string, unknown>>;
  readonly environment?: Readonly<Record<string, string>>;
}

/** vLLM is imported and loads a model; everything else is ready in seconds. */
const READY_LIMIT_MS = 240_000;
const STOP_LIMIT_MS = 10_000;

export const entryOf = (program: Program): string => inCheckout(`packages/${program}/dist/main.js`);

/** Without MUSER_*, which would change what the children do. */
export const childEnvironment = (): NodeJS.ProcessEnv =>
  Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('MUSER_')));

/**
 * One process of muser, started as `muser dev` does it: by its configuration file, in a process group of its own, so that a
 * Ctrl-C reaches the matrix alone, and ended with the matrix because its standard input ends.
 */
export class Child {
  readonly exited: Promise<void>;
  #running = true;

  private constructor(
    readonly pid: number,
    readonly ready: Ready,
    private readonly child: ChildProcess,
    exited: Promise<void>,
  ) {
    this.exited = exited.then(() => void (this.#running = false));
  }

  static async start(spec: ChildSpec, signal: AbortSignal): Promise<Child> {
    signal.throwIfAborted();
    const config = join(spec.folder, 'config.json');
    await writeFile(config, JSON.stringify({ ...spec.settings, stateDir: spec.folder, exitWithParent: true }));
    const log = await open(spec.logFile, 'a', 0o600);
    const child = spawn(process.execPath, [entryOf(spec.program), 'run', '--config', config], {
      stdio: ['pipe', 'pipe', log.fd],
      detached: true,
      env: { ...childEnvironment(), ...spec.environment },
    });
    await log.close();
    child.stdin?.on('error', () => undefined);
    const exited = new Promise<void>((resolve) => {
      child.once('exit', () => resolve());
      child.once('error', () => resolve());
    });
    const { pid } = child;
    try {
      const ready = await readyLine(spec, child, exited, signal);
      if (pid === undefined) throw new Error(`the ${spec.program} has no process id`);
      return new Child(pid, ready, child, exited);
    } catch (error) {
      child.kill('SIGKILL');
      await exited;
      throw error;
    }
  }

  get isRunning(): boolean {
    return this.#running;
  }

  async kill(): Promise<void> {
    if (this.#running) this.child.kill('SIGKILL');
    await this.exited;
  }

  /** By SIGTERM, and by SIGKILL when that takes too long. */
  async stop(): Promise<void> {
    if (!this.#running) return;
    // One that was stopped would not hear of it.
    this.child.kill('SIGCONT');
    this.child.kill('SIGTERM');
    const timer = setTimeout(() => this.child.kill('SIGKILL'), STOP_LIMIT_MS);
    await this.exited;
    clearTimeout(timer);
  }
}

/** The first line of standard output that is not about how far a start is. */
async function readyLine(
  { program, logFile }: ChildSpec,
  child: ChildProcess,
  exited: Promise<void>,
  signal: AbortSignal,
): Promise<Ready> {
  if (child.stdout === null) throw new Error(`the ${program} has no standard output`);
  const lines = createInterface({ input: child.stdout });
  const limit = AbortSignal.any([signal, AbortSignal.timeout(READY_LIMIT_MS)]);
  const line = await new Promise<string>((resolve, reject) => {
    limit.addEventListener('abort', () => reject(new Error(`the ${program} was not ready in time`)), { once: true });
    lines.on('line', (text) => !text.startsWith('{"milestone"') && resolve(text));
    void exited.then(() => reject(new Error(`the ${program} ended while it started; see ${logFile}`)));
  });
  const ready = JSON.parse(line) as Ready & { ready: boolean };
  if (!ready.ready) throw new Error(`the ${program} did not start: ${line}`);
  return ready;
}
