import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { Engine, loadModel, type Model } from '@muser/metal';
import type { Geometry } from '@muser/protocol';
import { TestAuthority } from '@muser/testing';
import { makeShapeModel, SHAPE_MODEL } from './shape-model.js';
import { Reader } from './transport-reader.js';
import { CHUNK_TOKENS, type SenderPorts, type SenderSetup, type SenderUsage } from './transport-scenario.js';
import { Usage } from './usage.js';

const SENDER = fileURLToPath(new URL('./transport-sender.js', import.meta.url));

/** The decoder's engine: sender and reader share the machine, so it gets one thread. */
export async function openEngine(promptTokens: number): Promise<{ model: Model; engine: Engine }> {
  await makeShapeModel();
  const model = await loadModel(SHAPE_MODEL);
  const engine = await Engine.create(model, {
    maxSequences: 1,
    contextTokens: promptTokens + CHUNK_TOKENS,
    chunkTokens: CHUNK_TOKENS,
    flashAttention: true,
    kvType: 'f16',
    threads: 1,
  });
  return { model, engine };
}

export const geometryOf = ({ info }: Model): Geometry => ({ ...info.geometry, vocabularySize: info.vocabularySize });

export interface Side {
  cpuSeconds: number;
  rssBytes: number;
  peakRssBytes: number;
}

export interface Measured {
  milliseconds: number;
  sender: SenderUsage;
  reader: Side;
}

/** A sending process and this one as the reader. */
export class Bed {
  private constructor(
    readonly reader: Reader,
    private readonly sender: ChildProcess,
  ) {}

  /** @param command what starts the sender where it shall run, before node's own; it listens on `host` there */
  static async start(model: Model, engine: Engine, host: string, command: string[]): Promise<Bed> {
    const authority = await TestAuthority.create();
    const producer = await authority.identity('producer');
    const decoder = await authority.identity('decoder');
    const geometry = geometryOf(model);
    const [program = '', ...args] = [...command, process.execPath, SENDER];
    const sender = spawn(program, args, { stdio: ['ignore', 'inherit', 'inherit', 'ipc'], serialization: 'advanced' });
    const { signingKey: _, signingSeed, ...identity } = producer;
    const ports = await ask<SenderPorts>(sender, { identity, signingSeed, geometry, host } satisfies SenderSetup);
    return new Bed(new Reader({ host, ports, decoder, producer, geometry, engine }), sender);
  }

  async measure(work: () => Promise<void>): Promise<Measured> {
    const usage = new Usage();
    await ask(this.sender, 'start');
    usage.start();
    const started = performance.now();
    await work();
    const milliseconds = performance.now() - started;
    return { milliseconds, reader: usage.stop(), sender: await ask<SenderUsage>(this.sender, 'stop') };
  }

  async close(): Promise<void> {
    this.reader.close();
    const exited = once(this.sender, 'exit');
    this.sender.disconnect();
    await exited;
  }
}

function ask<T>(sender: ChildProcess, message: object | string): Promise<T> {
  return new Promise((resolve, reject) => {
    const onExit = (code: number | null) => reject(new Error(`the sending process ended with ${code}`));
    sender.once('exit', onExit);
    sender.once('message', (answer) => {
      sender.off('exit', onExit);
      resolve(answer as T);
    });
    sender.send(message);
  });
}
