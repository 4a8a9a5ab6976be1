import { spawn, type ChildProcess } from 'node:child_process';
import { open, rename, stat, type FileHandle } from 'node:fs/promises';
import { createInterface } from 'node:readline';
import { type ErrorCode, isErrorCode } from '@muser/protocol';
import { z } from 'zod';
import { CliError, EXIT } from '../exit.js';
import { isMissing, openRegular } from '../files.js';
import { printable } from '../terminal.js';

/** A model of 30 billion parameters is read from disk within this time. */
const READY_LIMIT_MS = 180_000;
/** What a process has to say before its log begins is short. */
const LAST_WORDS_BYTES = 64 * 1024;
const MAX_REASON_LENGTH = 1_000;
const LOG_ROTATION_BYTES = 16 * 1024 * 1024;

export interface ProcessSpec<R> {
  /** As people call it: "coordinator". */
  name: string;
  /** The program, started with this Node. */
  entry: string;
  args: readonly string[];
  /** Its standard error goes here. */
  logFile: string;
  /** Form of the ready line. */
  ready: z.ZodType<R>;
  /** When it takes longer than usual to be ready. */
  readyLimitMs?: number;
  /** Variables for it alone, beside those of childEnvironment. */
  environment?: Readonly<Record<string, string>>;
  /** Hears what the process has done so far, until it is ready. */
  onMilestone?: (milestone: Milestone) => void;
}

const milestoneSchema = z.object({ milestone: z.string(), ms: z.number() });
/** A stage of a start that has ended, so many milliseconds after the start began. */
export type Milestone = z.infer<typeof milestoneSchema>;

const refusalSchema = z.object({
  ready: z.literal(false),
  error: z.object({ code: z.string(), message: z.string() }),
});

/** The child's environment: ours without MUSER_*, which would override the child's configuration file. */
export function childEnvironment(env: NodeJS.ProcessEnv): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(env).filter(([name]) => !name.startsWith('MUSER_')));
}

/**
 * A process of ours. It lives in a process group of its own, so that a Ctrl-C in the terminal reaches only this process,
 * which stops the children in order; it dies with us because its standard input ends.
 */
export class ManagedProcess<R> {
  /** Resolves when the process is gone, with what is known about its end. */
  readonly exited: Promise<string>;
  #running = true;

  private constructor(
    readonly name: string,
    readonly pid: number,
    readonly ready: R,
    private readonly child: ChildProcess,
    exited: Promise<string>,
  ) {
    this.exited = exited.then((reason) => {
      this.#running = false;
      return reason;
    });
  }

  /** Starts it and waits for its ready line. When that does not come, the process is gone when this rejects. */
  static async start<R>(spec: ProcessSpec<R>, signal: AbortSignal): Promise<ManagedProcess<R>> {
    signal.throwIfAborted();
    const log = await openLog(spec.logFile);
    const { size: logStart } = await log.stat();
    // Plain spawn: a log that goes on when this process is killed needs the file's own descriptor.
    const child = spawn(process.execPath, [spec.entry, ...spec.args], {
      stdio: ['pipe', 'pipe', log.fd],
      detached: true,
      env: { ...childEnvironment(process.env), ...spec.environment },
    });
    const exited = describeExit(child);
    await log.close();
    try {
      const ready = parseReady(spec, await readyLine(spec, child, exited, signal));
      if (child.pid === undefined) throw new CliError(EXIT.failed, 'INTERNAL', `the ${spec.name} has no process id`);
      return new ManagedProcess(spec.name, child.pid, ready, child, exited);
    } catch (error) {
      child.kill('SIGKILL');
      await exited;
      throw withLog(await withReason(error, spec, logStart), spec.logFile);
    }
  }

  get running(): boolean {
    return this.#running;
  }

  /** Asks it to end, and ends it after `limitMs`. Returns false when it had to be killed. */
  async stop(limitMs: number): Promise<boolean> {
    if (!this.#running) return true;
    let killed = false;
    const timer = setTimeout(() => {
      killed = true;
      this.child.kill('SIGKILL');
    }, limitMs);
    this.child.kill('SIGTERM');
    await this.exited;
    clearTimeout(timer);
    return !killed;
  }

  kill(): void {
    if (this.#running) this.child.kill('SIGKILL');
  }
}

/** A log to append to, set aside as `.1` when it has grown large. */
export async function openLog(path: string): Promise<FileHandle> {
  try {
    if ((await stat(path)).size > LOG_ROTATION_BYTES) await rename(path, `${path}.1`);
  } catch (error) {
    if (!isMissing(error)) throw error;
  }
  return open(path, 'a', 0o600);
}

/** Never rejects: a program that cannot be started has ended as well. */
function describeExit(child: ChildProcess): Promise<string> {
  // A write to the pipe of a child that has ended is no error of ours.
  child.stdin?.on('error', () => undefined);
  return new Promise((resolve) => {
    child.once('error', (error) => resolve(`could not be started (${error.message})`));
    child.once('exit', (code, signal) => {
      resolve(signal === null ? `ended with code ${code ?? 'unknown'}` : `ended by ${signal}`);
    });
  });
}

/**
 * The first line of standard output that is no milestone. Later output is read and dropped, so that the child never blocks
 * on it.
 */
async function readyLine<R>(
  spec: ProcessSpec<R>,
  child: ChildProcess,
  exited: Promise<string>,
  signal: AbortSignal,
): Promise<string> {
  const { name, readyLimitMs = READY_LIMIT_MS } = spec;
  const stdout = child.stdout;
  if (stdout === null) throw new CliError(EXIT.failed, 'INTERNAL', `the ${name} could not be started`);
  const lines = createInterface({ input: stdout, crlfDelay: Infinity });
  const limit = AbortSignal.any([signal, AbortSignal.timeout(readyLimitMs)]);
  try {
    return await new Promise<string>((resolve, reject) => {
      limit.addEventListener(
        'abort',
        () => reject(signal.aborted ? (signal.reason as Error) : notReady(name, readyLimitMs)),
        {
          once: true,
        },
      );
      lines.on('line', (line) => {
        const milestone = milestoneSchema.safeParse(parseJson(line));
        if (milestone.success) spec.onMilestone?.(milestone.data);
        else resolve(line);
      });
      // Standard output may still hold the reason when the process has ended, so its end decides, not the exit.
      lines.once('close', () => {
        void exited.then((reason) => {
          reject(new EndedEarly(`the ${name} ${reason} before it was ready`));
        });
      });
    });
  } finally {
    lines.close();
    stdout.resume();
  }
}

function notReady(name: string, limitMs: number): CliError {
  return new CliError(EXIT.failed, 'DEADLINE_EXCEEDED', `the ${name} was not ready within ${limitMs / 1000} s`);
}

/** null when it is no JSON. */
function parseJson(line: string): unknown {
  try {
    return JSON.parse(line);
  } catch {
    return null;
  }
}

function parseReady<R>(spec: ProcessSpec<R>, line: string): R {
  const json = parseJson(line);
  const refusal = refusalSchema.safeParse(json);
  if (refusal.success) {
    const { code, message } = refusal.data.error;
    throw notStarted(spec.name, code as ErrorCode, message);
  }
  const ready = spec.ready.safeParse(json);
  if (ready.success) return ready.data;
  throw new CliError(EXIT.failed, 'INTERNAL', `the ${spec.name}'s ready line has an unknown form`, {
    cause: ready.error,
  });
}

/** It ended without a word on standard output. */
class EndedEarly extends CliError {
  constructor(message: string) {
    super(EXIT.failed, 'UNAVAILABLE', message);
  }
}

/** A wrong configuration: starting again cannot help. */
function notStarted(name: string, code: ErrorCode, message: string): CliError {
  const exitCode = code === 'CONFIG_INVALID' ? EXIT.usage : EXIT.failed;
  return new CliError(exitCode, code, `the ${name} did not start: ${printable(message)}`);
}

/** Before its log and its ready line begin, a process tells in `program: CODE: message` why it ends. */
async function withReason(error: unknown, { name, logFile }: ProcessSpec<unknown>, start: number): Promise<unknown> {
  if (!(error instanceof EndedEarly)) return error;
  const lines = (await readFrom(logFile, start)).split('\n').reverse();
  for (const line of lines) {
    const [, code, message = ''] = /^[a-z0-9-]+: ([A-Z_]+): (.+)$/.exec(line) ?? [];
    if (!isErrorCode(code)) continue;
    return notStarted(
      name,
      code,
      message.length > MAX_REASON_LENGTH ? `${message.slice(0, MAX_REASON_LENGTH)}…` : message,
    );
  }
  return error;
}

async function readFrom(path: string, start: number): Promise<string> {
  const file = await openRegular(path);
  try {
    const { bytesRead, buffer } = await file.read(Buffer.alloc(LAST_WORDS_BYTES), 0, LAST_WORDS_BYTES, start);
    return buffer.toString('utf8', 0, bytesRead);
  } finally {
    await file.close();
  }
}

function withLog(error: unknown, logFile: string): unknown {
  if (!(error instanceof CliError) || error.advice !== null) return error;
  return new CliError(error.exitCode, error.code, error.message, { advice: `Its log is ${logFile}.`, cause: error });
}
