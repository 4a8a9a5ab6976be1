import type { EventEmitter } from 'node:events';
import { readFileSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

import { MuserError } from '@muser/protocol';
import type { Logger } from '@muser/service-kit';
import { execa } from 'execa';

import { endLeftover, recordWorker } from './leftover.js';
import { LogLines } from './log-lines.js';
import { killGroup } from './process-group.js';

/** The Python package beside this one: the worker's code is always that of this checkout, whatever is installed. */
export const PYTHON_PACKAGE = fileURLToPath(new URL('../../python', import.meta.url));

const LAST_LINES_MS = 100;

/** As PyTorch, vLLM, cuBLAS and a GB10's driver say it. */
const OUT_OF_MEMORY =
  /out of memory|OutOfMemoryError|MemoryError|oom[- ]kill|(?:can't|cannot) allocate memory|ALLOC_FAILED|NV_ERR_NO_MEMORY|no available memory|less than desired GPU memory|available KV cache memory/i;
/** A process that its container or a shell has reported as killed. */
const KILLED = 128 + 9;

export interface ProcessEnd {
  /** What happened, for people: "ended with code 1", "ended by SIGKILL". */
  readonly reason: string;
  /** Memory had run out: the worker said so, or the kernel killed for want of it. */
  readonly outOfMemory: boolean;
  /** Last line of its log; empty when it wrote none. For our own log only: it is not our text. */
  readonly lastLine: string;
}

interface Exit {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
}

export interface WorkerProcessOptions {
  /** The interpreter. */
  readonly python: string;
  /** What runs: `['-m', 'muser_vllm.worker']`. */
  readonly args: readonly string[];
  /** Goes to its standard input as one line of JSON; may hold secrets, which arguments and environment may not. */
  readonly settings: Readonly<Record<string, unknown>>;
  /** Where it is written down which worker runs; a worker that is named there already is ended first. null: nowhere. */
  readonly workerFile: string | null;
  readonly logger: Logger;
}

/**
 * The worker and everything that it starts, which is one process group. It ends by itself when its standard input is
 * closed, so also when this process is killed.
 */
export class WorkerProcess {
  readonly pid: number;
  /** Resolves (never rejects) when the first process of the group has ended. */
  readonly ended: Promise<ProcessEnd>;
  readonly #lines: LogLines;
  readonly #closeInput: () => void;
  readonly #oomKillsBefore = oomKills();

  private constructor(pid: number, exited: Promise<Exit>, lines: LogLines, closeInput: () => void) {
    this.pid = pid;
    this.#lines = lines;
    this.#closeInput = closeInput;
    this.ended = exited.then(async ({ code, signal }) => {
      const reason = signal === null ? `ended with code ${code ?? 'unknown'}` : `ended by ${signal}`;
      return this.lastWords(reason, signal === 'SIGKILL' || code === KILLED);
    });
  }

  /**
   * @throws MuserError ENGINE_FAILED when the interpreter cannot be started, UNAVAILABLE when `workerFile` cannot be
   * written, StuckGroupError when an earlier worker cannot be ended
   */
  static async start(options: WorkerProcessOptions): Promise<WorkerProcess> {
    const { python, args, settings, workerFile, logger } = options;
    if (workerFile !== null) await endLeftover(workerFile, logger);
    const child = execa(python, args, {
      stdin: 'pipe',
      stdout: 'ignore',
      stderr: 'pipe',
      buffer: false,
      reject: false,
      // A group of its own: Ctrl-C in the terminal is for us, and we can end all of it at once.
      detached: true,
      env: { PYTHONPATH: PYTHON_PACKAGE, PYTHONUNBUFFERED: '1', PYTHONNOUSERSITE: '1' },
    });
    const lines = new LogLines(logger, OUT_OF_MEMORY);
    child.stderr.on('data', (block: Buffer) => lines.push(block));
    // A worker that has ended does not read; its end is what counts.
    child.stdin.on('error', () => undefined);
    const { pid } = child;
    const exited = exitOf(child);
    void child.then(() => lines.end());
    if (pid === undefined) {
      const { code } = await child;
      throw new MuserError('ENGINE_FAILED', `${python} cannot be started (${code ?? 'unknown reason'})`);
    }
    if (workerFile !== null) {
      await recordWorker(workerFile, pid).catch(async (cause: unknown) => {
        await killGroup(pid);
        throw new MuserError('UNAVAILABLE', `${workerFile} cannot be written: check the disk`, { cause });
      });
    }
    child.stdin.write(`${JSON.stringify(settings)}\n`);
    return new WorkerProcess(pid, exited, lines, () => child.stdin.end());
  }

  /** From now on prompts are in its memory, and none may come out by its log. */
  guardLog(): void {
    this.#lines.hideNumbers();
  }

  /**
   * What is known when it, or a part of it, has ended. Its children have the log's other end and may live on, so the log's
   * end is not waited for; only for what was written last.
   * @param killed something was ended by a signal that the kernel uses as well
   */
  async lastWords(reason: string, killed: boolean): Promise<ProcessEnd> {
    await delay(LAST_LINES_MS);
    const outOfMemory = this.#lines.matched || (killed && oomKills() > this.#oomKillsBefore);
    return { reason, outOfMemory, lastLine: this.#lines.last };
  }

  /**
   * Asks it to end; kills the whole group when it has not within `graceMs`. Returns when nothing of it is left.
   * @throws StuckGroupError when it cannot be killed
   */
  async stop(graceMs: number): Promise<void> {
    this.#closeInput();
    await Promise.race([this.ended, delay(graceMs, undefined, { ref: false })]);
    await this.kill();
  }

  /** Ends the whole group and waits until it is gone. @throws StuckGroupError when it cannot be killed */
  async kill(): Promise<void> {
    await killGroup(this.pid).finally(this.#closeInput);
  }
}

function exitOf(child: EventEmitter): Promise<Exit> {
  return new Promise((resolve) => {
    child.once('exit', (code: number | null, signal: NodeJS.Signals | null) => resolve({ code, signal }));
  });
}

/** How many processes of this machine the kernel has killed for want of memory; 0 where it does not tell. */
function oomKills(): number {
  try {
    return Number(/^oom_kill (\d+)$/m.exec(readFileSync('/proc/vmstat', 'utf8'))?.[1] ?? 0);
  } catch {
    return 0;
  }
}
