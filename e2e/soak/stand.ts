import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { FaultProxy } from '@muser/testing';
import { inCheckout } from '../test/support/checkout.js';
import type { Cleanups } from '../test/support/cleanups.js';
import {
  announce,
  enrollNode,
  joinDecoder,
  Node,
  producersReady,
  startCoordinator,
  type CoordinatorAccess,
  type ProducerReady,
} from '../test/support/nodes.js';
import { Reference } from '../test/support/reference.js';
import { probed, probeFileOf, sample, type Sample } from './census.js';
import { RandomFaults } from './random-faults.js';

export type Backend = 'llama' | 'vllm';

const MODEL = inCheckout('models/muse-nano/muse-nano-q8_0.gguf');
const CHECKPOINT = inCheckout('models/muse-nano/hf');
const ENGINE = { threads: 1, contextTokens: 32_768, chunkTokens: 512 };
const LONGEST_PROMPT = 10_240;
/** Of the decoder: how long a silent producer is waited for. A chunk takes less, on a busy machine too. */
const STALL_TIMEOUT_MS = { llama: 5_000, vllm: 10_000 };
const SETTLE_LIMIT_MS = 60_000;

interface NodeView {
  nodeId: string;
  role: string;
  load: { queueLength: number; activeTransfers: number } | null;
}

/** A producer behind a proxy with faults. */
class FaultyProducer {
  private constructor(
    readonly name: string,
    readonly nodeId: string,
    readonly proxy: FaultProxy,
    private node: Node<ProducerReady>,
    private readonly start: (port: number) => Promise<Node<ProducerReady>>,
  ) {}

  static async join(
    folder: string,
    name: string,
    backend: Backend,
    { coordinator, faults }: { coordinator: CoordinatorAccess; faults: RandomFaults },
  ): Promise<FaultyProducer> {
    const home = join(folder, name);
    const nodeId = await enrollNode('gb10-producer', home, name, coordinator);
    const { contextTokens: _, ...engine } = ENGINE;
    const settings = {
      ...engine,
      name,
      backend,
      model: backend === 'vllm' ? CHECKPOINT : MODEL,
      maxConcurrent: 2,
      maxPromptTokens: LONGEST_PROMPT,
      drainMs: 1_000,
    };
    const start = (port: number): Promise<Node<ProducerReady>> =>
      Node.start('gb10-producer', home, { ...settings, port }, probed(probeFileOf(folder, name)));
    const node = await start(0);
    const [, host = '', port = ''] = /^(.+):(\d+)$/.exec(node.ready.address) ?? [];
    const proxy = await FaultProxy.listen({ target: { host, port: Number(port) }, faults: () => faults.next() });
    await announce(coordinator, nodeId, [proxy.target]);
    return new FaultyProducer(name, nodeId, proxy, node, start);
  }

  get pid(): number {
    return this.node.pid;
  }

  /** Kills it and starts it again at the same address. */
  async killAndRestart(): Promise<void> {
    const port = Number(this.node.ready.address.split(':').at(-1));
    await this.node.kill();
    this.node = await this.start(port);
  }

  async stop(): Promise<void> {
    await this.node.kill();
    await this.proxy.close();
  }
}

/** Everything that a soak runs: coordinator, two producers behind faulty links, a decoder, and one to compare with. */
export class Stand {
  #restart: Promise<void> = Promise.resolve();
  kills = 0;

  private constructor(
    private readonly folder: string,
    private readonly coordinator: { access: CoordinatorAccess; pid: number },
    /** It lives as long as the soak, so that what it leaks is seen. */
    readonly steady: FaultyProducer,
    /** This one is killed now and then. */
    readonly mortal: FaultyProducer,
    private readonly decoderPid: number,
    readonly decoder: string,
    readonly reference: Reference,
    readonly faults: RandomFaults,
  ) {}

  static async start(folder: string, backend: Backend, seed: number, cleanups: Cleanups): Promise<Stand> {
    await mkdir(folder, { recursive: true, mode: 0o700 });
    const faults = new RandomFaults(seed);
    const coordinator = await startCoordinator(join(folder, 'coordinator'), probed(probeFileOf(folder, 'coordinator')));
    cleanups.add(() => coordinator.stop());
    const addProducer = async (name: string, engine: Backend): Promise<FaultyProducer> => {
      const producer = await FaultyProducer.join(folder, name, engine, { coordinator: coordinator.access, faults });
      cleanups.add(() => producer.stop());
      return producer;
    };
    const steady = await addProducer('steady', backend);
    const mortal = await addProducer('mortal', 'llama');
    const decoder = await joinDecoder(coordinator.access, join(folder, 'decoder'), MODEL, {
      settings: { ...ENGINE, stallTimeoutMs: STALL_TIMEOUT_MS[backend] },
      launch: probed(probeFileOf(folder, 'decoder')),
    });
    cleanups.add(() => decoder.stop());
    const reference = await Reference.start(join(folder, 'reference'), { ...ENGINE, model: MODEL });
    cleanups.add(() => reference.stop());
    const http = decoder.ready.http;
    return new Stand(folder, coordinator, steady, mortal, decoder.pid, http, reference, faults);
  }

  /** Kills the mortal producer, whatever it does, and starts it again; not while it is starting. */
  killOne(): void {
    this.#restart = this.#restart.then(async () => {
      this.kills += 1;
      await this.mortal.killAndRestart();
    });
    // Reported when the soak waits for it.
    this.#restart.catch(() => undefined);
  }

  /** Nothing passes to either producer for a while. */
  freeze(milliseconds: number): void {
    for (const { proxy } of [this.steady, this.mortal]) {
      proxy.freeze();
      setTimeout(() => proxy.thaw(), milliseconds).unref();
    }
  }

  /** Waits until nothing runs anywhere. @returns how many transfers and sequences have not settled in time */
  async settle(): Promise<number> {
    await this.#restart;
    const deadline = performance.now() + SETTLE_LIMIT_MS;
    let unsettled = await this.unsettled();
    while (unsettled > 0 && performance.now() < deadline) {
      await new Promise((resolve) => setTimeout(resolve, 250));
      unsettled = await this.unsettled();
    }
    return unsettled;
  }

  /** Waits until both producers can be used again, so that every part of the soak begins alike. */
  whole(): Promise<void> {
    return producersReady(this.decoder, 2);
  }

  /** Each process once; the mortal producer's is another one after each kill. */
  async census(): Promise<Record<string, Sample>> {
    const pids = {
      coordinator: this.coordinator.pid,
      steady: this.steady.pid,
      mortal: this.mortal.pid,
      decoder: this.decoderPid,
    };
    const samples: Record<string, Sample> = {};
    for (const [name, pid] of Object.entries(pids)) samples[name] = await sample(pid, probeFileOf(this.folder, name));
    return samples;
  }

  private async unsettled(): Promise<number> {
    const { http, token } = this.coordinator.access;
    const answers = await Promise.all([
      fetch(new URL('/health', this.decoder)),
      fetch(new URL('/api/nodes', http), { headers: { authorization: `Bearer ${token}` } }),
    ]);
    const [health, list] = (await Promise.all(answers.map((answer) => answer.json()))) as [
      { sequences: { active: number } },
      { nodes: NodeView[] },
    ];
    const transfers = list.nodes.map(({ load }) => load?.activeTransfers ?? 0);
    return transfers.reduce((sum, count) => sum + count, health.sequences.active);
  }
}
