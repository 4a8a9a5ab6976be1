import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { writeFileAtomic } from '@muser/service-kit';
import { z } from 'zod';
import { DecoderClient } from '../decoder-client.js';
import { CliError, EXIT } from '../exit.js';
import { createStateFolders, stateLayout, type Endpoints, type StateLayout } from '../state.js';
import { CoordinatorClient } from './coordinator-client.js';
import { threadsPerEngine } from './cores.js';
import { enroll } from './enroll.js';
import { ENTRIES } from './paths.js';
import { ManagedProcess } from './process.js';
import { describeMilestone, type ProducerEngine } from './producer-engine.js';

const STOP_LIMIT_MS = 8_000;
/** A user who stops the system waits for it; requests that run then are cancelled after this time. */
const DRAIN_MS = 1_000;
const PRODUCER_WAIT_MS = 30_000;
const POLL_MS = 50;

const coordinatorReady = z.object({ ready: z.literal(true), http: z.url(), grpc: z.string() });
const producerReady = z.object({
  ready: z.literal(true),
  address: z.string(),
  nodeId: z.string(),
  paused: z.boolean(),
});
const decoderReady = z.object({ ready: z.literal(true), http: z.url(), nodeId: z.string() });

export type RoleName = 'coordinator' | 'producer' | 'decoder';

export interface SystemOptions {
  /** Absolute path of the state folder. */
  state: string;
  /** GGUF file of the decoder. */
  model: string;
  engine: ProducerEngine;
  /** Port of the decoder's HTTP interface; 0 takes a free one. */
  port: number;
  /** Makes the producer as slow as this, for trying out what a slow one does; null for its own speed. */
  prefillTokensPerSecond: number | null;
  /** Called at each step, for people. */
  onProgress: (text: string) => void;
  /** Called when a process ends by itself after the start. */
  onExit: (name: RoleName, reason: string) => void;
}

/** Coordinator, producer and decoder as three processes of this machine. */
export class System {
  readonly #processes: ManagedProcess<unknown>[] = [];
  #stopping = false;
  #endpoints: Endpoints | null = null;
  private readonly layout: StateLayout;

  constructor(private readonly options: SystemOptions) {
    this.layout = stateLayout(options.state);
  }

  /** Starts all three and waits until the decoder sees the producer. After a failure nothing runs any more. */
  async start(signal: AbortSignal): Promise<void> {
    try {
      await createStateFolders(this.layout);
      await this.#startAll(signal);
    } catch (error) {
      await this.stop(this.options.onProgress);
      throw error;
    }
  }

  get endpoints(): Endpoints {
    if (this.#endpoints === null) throw new Error('the system has not started');
    return this.#endpoints;
  }

  /** The decoder first, so that no request is cut off by its producer; each within a limit, then killed. */
  async stop(onProgress: (text: string) => void): Promise<void> {
    this.#stopping = true;
    for (const child of [...this.#processes].reverse()) {
      if (!child.running) continue;
      onProgress(`stopping the ${child.name}`);
      if (!(await child.stop(STOP_LIMIT_MS))) onProgress(`the ${child.name} did not stop in time and was killed`);
    }
    await rm(this.layout.endpointsFile, { force: true });
  }

  /** Ends everything at once, also while it starts or stops. */
  kill(): void {
    this.#stopping = true;
    for (const child of this.#processes) child.kill();
  }

  async #startAll(signal: AbortSignal): Promise<void> {
    const { layout, options } = this;
    const { engine } = options;
    const threads = threadsPerEngine(2);
    const coordinator = await this.#start('coordinator', coordinatorReady, {}, signal);
    const client = await CoordinatorClient.open(coordinator.ready.http, layout);
    const [producerId] = await Promise.all([
      enroll(
        { name: 'producer', role: 'producer', entry: ENTRIES.producer, stateDir: layout.producer },
        client,
        signal,
      ),
      enroll({ name: 'decoder', role: 'decoder', entry: ENTRIES.decoder, stateDir: layout.decoder }, client, signal),
    ]);
    const pacing = options.prefillTokensPerSecond === null ? {} : { pacing: options.prefillTokensPerSecond };
    const producer = await this.#start(
      'producer',
      producerReady,
      { name: 'producer', backend: engine.name, model: engine.model, threads, drainMs: DRAIN_MS, ...pacing },
      signal,
      engine,
    );
    await client.setAddresses(producerId, [producer.ready.address], signal);
    const decoder = await this.#start(
      'decoder',
      decoderReady,
      {
        model: options.model,
        port: options.port,
        threads,
        coordinator: coordinator.ready.grpc,
        drainMs: DRAIN_MS,
      },
      signal,
    );
    if (producer.ready.paused)
      options.onProgress('the producer is paused: `muser node resume producer` loads its model');
    else await this.#waitForProducer(new URL(decoder.ready.http), signal);
    this.#endpoints = {
      decoder: decoder.ready.http,
      coordinator: coordinator.ready.http,
      pids: { coordinator: coordinator.pid, producer: producer.pid, decoder: decoder.pid },
    };
    await writeFileAtomic(layout.endpointsFile, `${JSON.stringify(this.#endpoints)}\n`);
  }

  async #start<R>(
    name: RoleName,
    ready: z.ZodType<R>,
    settings: Record<string, unknown>,
    signal: AbortSignal,
    engine: ProducerEngine | null = null,
  ): Promise<ManagedProcess<R>> {
    this.options.onProgress(`starting the ${name}`);
    const stateDir = this.layout[name];
    const configFile = join(stateDir, 'config.json');
    await writeFileAtomic(configFile, `${JSON.stringify({ stateDir, exitWithParent: true, ...settings }, null, 2)}\n`);
    const child = await ManagedProcess.start(
      {
        name,
        entry: ENTRIES[name],
        args: ['run', '--config', configFile],
        logFile: join(this.layout.logs, `${name}.log`),
        ready,
        onMilestone: (milestone) => this.options.onProgress(describeMilestone(milestone)),
        ...(engine === null ? {} : { environment: engine.environment }),
        ...(engine?.readyLimitMs == null ? {} : { readyLimitMs: engine.readyLimitMs }),
      },
      signal,
    );
    this.#processes.push(child);
    void child.exited.then((reason) => {
      if (!this.#stopping) this.options.onExit(name, reason);
    });
    return child;
  }

  async #waitForProducer(decoder: URL, signal: AbortSignal): Promise<void> {
    this.options.onProgress('waiting until the decoder sees the producer');
    const client = new DecoderClient(decoder);
    const deadline = performance.now() + PRODUCER_WAIT_MS;
    while (performance.now() < deadline) {
      const dead = this.#processes.find((child) => !child.running);
      if (dead !== undefined) throw new CliError(EXIT.failed, 'UNAVAILABLE', `the ${dead.name} ended while starting`);
      const health = await client.health(signal);
      if (health.producers.some((producer) => producer.state === 'healthy' || producer.state === 'ready')) return;
      await delay(POLL_MS, undefined, { signal });
    }
    throw new CliError(EXIT.failed, 'NO_PRODUCER', `the decoder saw no producer within ${PRODUCER_WAIT_MS / 1000} s`, {
      advice: `The logs are in ${this.layout.logs}.`,
    });
  }
}
