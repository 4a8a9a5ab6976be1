import { spawn, type ChildProcess } from 'node:child_process';
import { readFileSync } from 'node:fs';
import type { Readable, Writable } from 'node:stream';

export interface TargetCommand {
  command: string;
  args: readonly string[];
  cwd: string;
  env?: Readonly<Record<string, string>>;
}

/** What became of one input: nothing that is new, new code was reached, or it failed. */
export type Outcome = { kind: 'known' | 'new' } | { kind: 'failed'; message: string };

const ANSWERS = { known: 0, new: 1, failed: 2 } as const;
const MAX_MESSAGE_BYTES = 1 << 16;
const KEPT_ERROR_BYTES = 1 << 16;
/** For one input; a target that takes longer hangs. */
const INPUT_LIMIT_MS = 20_000;
const START_LIMIT_MS = 120_000;
/** Beyond what it had after its start. */
const MAX_GROWTH_BYTES = 1 << 30;

/**
 * A process that runs inputs one after another. It reads `u32 length, bytes` (little-endian) on its standard input and
 * answers each on descriptor 3: a byte 0 (nothing new), 1 (new code), or 2 with `u32 length, text` of what failed. Its
 * first answer, before any input, is a byte 0. Whatever it does instead (dies, hangs, grows) is a failure of the input.
 */
export class TargetProcess {
  readonly #child: ChildProcess;
  readonly #exit: Promise<string>;
  #errors = '';
  #unread: Buffer = Buffer.alloc(0);
  #ended = false;
  #wake: () => void = () => undefined;
  #startBytes = 0;

  private constructor({ command, args, cwd, env }: TargetCommand) {
    this.#child = spawn(command, args, {
      cwd,
      env: { ...process.env, ...env },
      stdio: ['pipe', 'ignore', 'pipe', 'pipe'],
    });
    const [input, , errors, answers] = this.#child.stdio;
    // It has died: the exit says so.
    (input as Writable).on('error', () => undefined);
    (errors as Readable).setEncoding('utf8').on('data', (text: string) => {
      this.#errors = (this.#errors + text).slice(-KEPT_ERROR_BYTES);
    });
    (answers as Readable).on('data', (block: Buffer) => {
      this.#unread = this.#unread.length === 0 ? block : Buffer.concat([this.#unread, block]);
      this.#wake();
    });
    (answers as Readable).on('close', () => {
      this.#ended = true;
      this.#wake();
    });
    this.#exit = new Promise((resolve) => {
      this.#child.once('error', (error) => resolve(`could not be started: ${error.message}`));
      this.#child.once('close', (code, signal) => resolve(`died (${signal ?? `exit code ${code}`})\n${this.#errors}`));
    });
  }

  /** @throws Error when it does not come up */
  static async start(command: TargetCommand): Promise<TargetProcess> {
    const target = new TargetProcess(command);
    const first = await target.#outcome(START_LIMIT_MS);
    if (first.kind === 'failed') throw new Error(`the target ${first.message}`);
    target.#startBytes = target.#residentBytes();
    return target;
  }

  /** Runs inputs in order, up to the first that fails. */
  async run(inputs: readonly Uint8Array[]): Promise<Outcome[]> {
    const framed = inputs.flatMap((bytes) => {
      const length = Buffer.alloc(4);
      length.writeUInt32LE(bytes.length);
      return [length, bytes];
    });
    this.#child.stdin?.write(Buffer.concat(framed));
    const outcomes: Outcome[] = [];
    for (let left = inputs.length; left > 0; left -= 1) {
      const outcome = await this.#outcome(INPUT_LIMIT_MS);
      outcomes.push(outcome);
      if (outcome.kind === 'failed') return outcomes;
    }
    const grown = this.#residentBytes() - this.#startBytes;
    if (grown <= MAX_GROWTH_BYTES) return outcomes;
    return [...outcomes.slice(0, -1), { kind: 'failed', message: `grew by ${grown} bytes` }];
  }

  async stop(): Promise<void> {
    this.#child.kill('SIGKILL');
    await this.#exit;
  }

  async #outcome(limitMs: number): Promise<Outcome> {
    const timer = setTimeout(() => {
      this.#errors += `it gave no answer within ${limitMs} ms\n`;
      this.#child.kill('SIGKILL');
    }, limitMs);
    try {
      const answer = (await this.#read(1))?.readUInt8(0);
      if (answer === ANSWERS.known) return { kind: 'known' };
      if (answer === ANSWERS.new) return { kind: 'new' };
      if (answer !== ANSWERS.failed) return { kind: 'failed', message: await this.#exit };
      const length = (await this.#read(4))?.readUInt32LE(0) ?? 0;
      const text = await this.#read(Math.min(length, MAX_MESSAGE_BYTES));
      return { kind: 'failed', message: text?.toString('utf8') ?? (await this.#exit) };
    } finally {
      clearTimeout(timer);
    }
  }

  /** `count` bytes of its answers; null when it ends before. */
  async #read(count: number): Promise<Buffer | null> {
    while (this.#unread.length < count) {
      if (this.#ended) return null;
      await new Promise<void>((resolve) => (this.#wake = resolve));
    }
    const taken = this.#unread.subarray(0, count);
    this.#unread = this.#unread.subarray(count);
    return taken;
  }

  /** 0 where the system does not tell. */
  #residentBytes(): number {
    try {
      const pages = readFileSync(`/proc/${this.#child.pid}/statm`, 'utf8').split(' ')[1];
      return Number(pages) * 4096;
    } catch {
      return 0;
    }
  }
}
