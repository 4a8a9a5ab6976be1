import { spawn, type ChildProcessWithoutNullStreams } from 'node:child_process';
import { once } from 'node:events';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

import { onTestFinished } from 'vitest';

import { temporaryFolder } from './folders.js';

const MAIN = fileURLToPath(new URL('../../dist/main.js', import.meta.url));

export interface ReadyLine {
  ready: true;
  pid: number;
  http: string;
  grpc: string;
  nodeId: string;
}

export interface FailureLine {
  ready: false;
  error: { code: string; message: string };
}

/** A coordinator in a process of its own that ends with the test. */
export class CoordinatorProcess {
  #log = '';

  private constructor(
    readonly child: ChildProcessWithoutNullStreams,
    readonly firstLine: Promise<ReadyLine | FailureLine>,
    readonly exit: Promise<number | string | null>,
  ) {
    child.stderr.on('data', (data: Buffer) => (this.#log += data.toString()));
  }

  /** `wrap` puts a command around the process, as in `unshare ... exec node main.js`. */
  static async launch(
    config: Record<string, unknown>,
    wrap: (command: string[]) => string[] = (command) => command,
  ): Promise<CoordinatorProcess> {
    const file = join(await temporaryFolder(), 'config.json');
    await writeFile(file, JSON.stringify(config));
    const [program = '', ...args] = wrap([process.execPath, MAIN, 'run', '--config', file]);
    const child = spawn(program, args);
    const exit = once(child, 'close').then(([code, signal]) => (code ?? signal) as number | string | null);
    const line = once(createInterface(child.stdout), 'line').then(
      ([text]) => JSON.parse(text as string) as ReadyLine | FailureLine,
    );
    const ended = exit.then((code): never => {
      throw new Error(`ended with ${code} before it was ready`);
    });
    ended.catch(() => undefined);
    const coordinator = new CoordinatorProcess(child, Promise.race([line, ended]), exit);
    onTestFinished(() => coordinator.kill());
    return coordinator;
  }

  get log(): string {
    return this.#log;
  }

  async ready(): Promise<ReadyLine> {
    const line = await this.firstLine;
    if (!line.ready) throw new Error(line.error.message);
    return line;
  }

  async failure(): Promise<{ code: string; message: string; exit: number | string | null }> {
    const line = await this.firstLine;
    if (line.ready) throw new Error('it is ready');
    return { ...line.error, exit: await this.exit };
  }

  async kill(): Promise<void> {
    if (this.child.exitCode === null && this.child.signalCode === null) this.child.kill('SIGKILL');
    await this.exit;
  }
}
