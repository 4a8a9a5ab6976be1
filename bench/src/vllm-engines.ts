import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import type { Readable, Writable } from 'node:stream';
import { chmod, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as delay } from 'node:timers/promises';

import { inRepository } from './machine.js';

export const VLLM_PYTHON = inRepository('.cache/vllm/env/bin/python');
const CHECKPOINT = inRepository('models/muse-nano/hf');
const PACKAGE = inRepository('packages/gb10-producer/python');
const SCRIPTS = inRepository('bench/gpu');
const START_LIMIT_MS = 300_000;
const STOP_LIMIT_MS = 30_000;

/** What both engines get. More threads than one would leave no core to the reader. */
export const ENGINE = { chunkTokens: 512, maxPromptTokens: 4_096, kvCacheBytes: 256 << 20, threads: 1 } as const;

/** What the producer's log says of a transfer. */
export interface SealedTransfer {
  readonly prefillMs: number;
  readonly payloadBytes: number;
  readonly chunkSendMs: number;
  readonly slowestChunkSendMs: number;
}

/** The producer with the vLLM backend, as a user starts it, but for a worker that tells how much it stages. */
export class ProducerProcess {
  readonly address: string;
  readonly pid: number;
  readonly #child: ChildProcess;
  readonly #sealed: SealedTransfer[];
  readonly #stagingFile: string;

  private constructor(child: ChildProcess, address: string, sealed: SealedTransfer[], stagingFile: string) {
    this.#child = child;
    this.pid = pidOf(child);
    this.address = address;
    this.#sealed = sealed;
    this.#stagingFile = stagingFile;
  }

  /** @param stateDir holds the identity */
  static async start(stateDir: string): Promise<ProducerProcess> {
    const stagingFile = join(stateDir, 'staging.json');
    const config = join(stateDir, 'config.json');
    const { threads, chunkTokens, maxPromptTokens, kvCacheBytes } = ENGINE;
    const vllm = { python: await measuredPython(stateDir, stagingFile), kvCacheBytes };
    const settings = { stateDir, backend: 'vllm', model: CHECKPOINT, threads, chunkTokens, maxPromptTokens, vllm };
    await writeFile(config, JSON.stringify({ ...settings, exitWithParent: true }));
    const main = inRepository('packages/gb10-producer/dist/main.js');
    const child = spawn(process.execPath, [main, 'run', '--config', config], { stdio: ['pipe', 'pipe', 'pipe'] });
    const sealed: SealedTransfer[] = [];
    const log: string[] = [];
    createInterface({ input: child.stderr }).on('line', (line) => {
      log.push(line);
      const entry = entryOf(line);
      if (entry?.msg === 'transfer sealed') sealed.push(entry as SealedTransfer & { msg: string });
    });
    const lines = new Lines(child.stdout, () => log.slice(-5).join('\n'));
    return stoppedOnFailure(child, async () => {
      for (;;) {
        const { ready, address } = JSON.parse(await lines.next()) as { ready?: true; address: string };
        if (ready) return new ProducerProcess(child, address, sealed, stagingFile);
      }
    });
  }

  /** What the log says of the transfers that ended since it was last asked. */
  async takeSealed(count: number): Promise<SealedTransfer[]> {
    const endMs = performance.now() + STOP_LIMIT_MS;
    // The log is written after the last byte: a moment after the reader has it.
    while (this.#sealed.length < count && performance.now() < endMs) await delay(5);
    return this.#sealed.splice(0, count);
  }

  /** The most host memory that the worker has ever held for rows. */
  async stagedBytesPeak(): Promise<number> {
    const { stagedBytesPeak } = JSON.parse(await readFile(this.#stagingFile, 'utf8')) as { stagedBytesPeak: number };
    return stagedBytesPeak;
  }

  stop(): Promise<void> {
    return terminate(this.#child);
  }
}

/** vLLM with the same settings and no connector. */
export class PlainEngine {
  readonly pid: number;
  readonly #child: ChildProcess;
  readonly #lines: Lines;
  readonly #input: Writable;

  private constructor(child: ChildProcess, output: Readable, input: Writable) {
    this.#child = child;
    this.#lines = new Lines(output, () => 'vLLM without connector has ended');
    this.#input = input;
    this.pid = pidOf(child);
  }

  static async start(): Promise<PlainEngine> {
    const env = { ...process.env, PYTHONPATH: `${PACKAGE}:${SCRIPTS}` };
    const child = spawn(VLLM_PYTHON, ['-B', join(SCRIPTS, 'engine_without_connector.py')], {
      stdio: ['pipe', 'pipe', 'ignore'],
      env,
    });
    return stoppedOnFailure(child, async () => {
      const engine = new PlainEngine(child, child.stdout, child.stdin);
      child.stdin.write(`${JSON.stringify(plainSettings())}\n`);
      await engine.#lines.next();
      return engine;
    });
  }

  /** Milliseconds until the prompt is computed. */
  async prefillMs(tokens: Uint32Array): Promise<number> {
    const startedMs = performance.now();
    const head = Buffer.alloc(8);
    head.writeUInt32LE(1, 0);
    head.writeUInt32LE(tokens.length, 4);
    this.#input.write(Buffer.concat([head, new Uint8Array(tokens.buffer, tokens.byteOffset, tokens.byteLength)]));
    await this.#lines.next();
    return performance.now() - startedMs;
  }

  stop(): Promise<void> {
    this.#input.end();
    return gone(this.#child);
  }
}

function plainSettings(): object {
  return {
    ...{ controlSocket: '-', dataSocket: '-', secret: '-', stagingBytes: null, leaseMs: 30_000 },
    ...{ modelPath: CHECKPOINT, maxConcurrent: 1, tensorParallel: 1, pipelineParallel: 1 },
    ...{ attentionBackend: null, enforceEager: true, gpuMemoryUtilization: null, ...ENGINE },
  };
}

/** Runs another program than the worker that it is asked for: the same one, whose connector is measured. */
async function measuredPython(folder: string, stagingFile: string): Promise<string> {
  const path = join(folder, 'python');
  const environment = `MUSER_CHECK_STAGING_FILE='${stagingFile}' PYTHONPATH="$PYTHONPATH:${SCRIPTS}"`;
  const program = `'${VLLM_PYTHON}' -B '${join(SCRIPTS, 'measured_worker.py')}'`;
  await writeFile(path, `#!/bin/sh\n${environment} exec ${program}\n`);
  await chmod(path, 0o755);
  return path;
}

/** The lines that a process prints. */
class Lines {
  readonly #iterator: AsyncIterator<string>;
  readonly #why: () => string;

  /** @param why what to say when there is no line */
  constructor(output: Readable, why: () => string) {
    this.#iterator = createInterface({ input: output })[Symbol.asyncIterator]();
    this.#why = why;
  }

  async next(): Promise<string> {
    const stop = new AbortController();
    const late = delay(START_LIMIT_MS, null, { signal: stop.signal }).catch(() => null);
    const found = await Promise.race([this.#iterator.next(), late]);
    stop.abort();
    if (found === null || found.done === true) throw new Error(this.#why());
    return found.value;
  }
}

/** What a line of a log says; null for what is no entry, as the warnings that Node.js prints. */
function entryOf(line: string): { msg?: string } | null {
  try {
    return JSON.parse(line) as { msg?: string } | null;
  } catch {
    return null;
  }
}

/** Starts what runs in a process, which does not outlive a start that fails. */
async function stoppedOnFailure<T>(child: ChildProcess, start: () => Promise<T>): Promise<T> {
  try {
    return await start();
  } catch (error) {
    await terminate(child);
    throw error;
  }
}

function terminate(child: ChildProcess): Promise<void> {
  child.kill('SIGTERM');
  return gone(child);
}

async function gone(child: ChildProcess): Promise<void> {
  const timer = setTimeout(() => child.kill('SIGKILL'), STOP_LIMIT_MS);
  if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
  clearTimeout(timer);
}

function pidOf({ pid }: ChildProcess): number {
  if (pid === undefined) throw new Error('the process was not started');
  return pid;
}
