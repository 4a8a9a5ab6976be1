import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import type { FaultProxy } from '@muser/testing';
import { Random } from '@muser/testing';
import { inCheckout } from '../test/support/checkout.js';
import type { Cleanups } from '../test/support/cleanups.js';
import {
  announce,
  enrollNode,
  joinDecoder,
  Node,
  producersReady,
  startCoordinator,
  type ProducerReady,
} from '../test/support/nodes.js';
import type { Reference } from '../test/support/reference.js';
import type { Link } from './link.js';
import { delayProxy } from './measure.js';
import type { TwoMachines } from './two-machines.js';

/** The same chunks everywhere, so that answers can be compared word by word. */
export const ENGINE = {
  model: inCheckout('models/muse-nano/muse-nano-q8_0.gguf'),
  threads: 1,
  contextTokens: 20_480,
  chunkTokens: 512,
} as const;
/** The least that is allowed, two chunks of muse-nano, so that a link that is behind is felt soon. */
const STAGING_BYTES = 4 << 20;
/** A stall of the link, and the time until the next one. */
const STALL_MS = [100, 600] as const;
const BETWEEN_STALLS_MS = [300, 1_500] as const;

/** A whole system with its producer at the far end of a link. */
export class Scene {
  private constructor(
    readonly link: Link,
    readonly machines: TwoMachines,
    readonly reference: Reference,
    /** Address of its HTTP interface. */
    readonly decoder: string,
    private producer: Node<ProducerReady>,
    private readonly restart: () => Promise<Node<ProducerReady>>,
  ) {}

  static async start(
    folder: string,
    link: Link,
    { machines, reference, cleanups }: { machines: TwoMachines; reference: Reference; cleanups: Cleanups },
  ): Promise<Scene> {
    await mkdir(folder, { mode: 0o700 });
    await machines.setRate(link.bitsPerSecond);
    const coordinator = await startCoordinator(join(folder, 'coordinator'));
    cleanups.add(() => coordinator.stop());
    const home = join(folder, 'producer');
    const nodeId = await enrollNode('gb10-producer', home, 'gb10', coordinator.access);
    const start = (port: number): Promise<Node<ProducerReady>> => startProducer(home, machines, port);
    let producer = await start(0);
    cleanups.add(() => producer.kill());
    const target = addressOf(producer);
    const proxy = await delayProxy(target, link);
    cleanups.add(() => proxy.close());
    if (link.stalls) cleanups.add(stallNowAndThen(proxy));
    await announce(coordinator.access, nodeId, [proxy.target]);
    const { model, ...settings } = ENGINE;
    const decoder = await joinDecoder(coordinator.access, join(folder, 'decoder'), model, { settings });
    cleanups.add(() => decoder.stop());
    return new Scene(link, machines, reference, decoder.ready.http, producer, async () => {
      producer = await start(target.port);
      return producer;
    });
  }

  async killProducer(): Promise<void> {
    await this.producer.kill();
  }

  /** Starts a killed producer again and waits until the decoder sees it. */
  async reviveProducer(): Promise<void> {
    this.producer = await this.restart();
    await producersReady(this.decoder, 1);
  }

  /** Pulls the cable out for as long as this link's is. */
  async cutCable(): Promise<void> {
    await this.machines.unplug();
    await new Promise((resolve) => setTimeout(resolve, this.link.cutMs));
    await this.machines.plugIn();
  }
}

function startProducer(home: string, machines: TwoMachines, port: number): Promise<Node<ProducerReady>> {
  const settings = {
    ...ENGINE,
    name: 'gb10',
    backend: 'llama',
    host: machines.gb10Address,
    port,
    maxConcurrent: 2,
    maxPromptTokens: 10_240,
    budgets: { stagingBytesPerTransfer: STAGING_BYTES },
    contextTokens: undefined,
  };
  return Node.start<ProducerReady>('gb10-producer', home, settings, { prefix: machines.on('gb10') });
}

function addressOf({ ready }: Node<ProducerReady>): { host: string; port: number } {
  const [, host = '', port = ''] = /^(.+):(\d+)$/.exec(ready.address) ?? [];
  return { host, port: Number(port) };
}

/** @returns what ends it */
function stallNowAndThen(proxy: FaultProxy): () => void {
  const random = new Random(1);
  let timer: NodeJS.Timeout;
  const stall = (): void => {
    proxy.freeze();
    timer = setTimeout(flow, random.integer(...STALL_MS));
  };
  const flow = (): void => {
    proxy.thaw();
    timer = setTimeout(stall, random.integer(...BETWEEN_STALLS_MS));
  };
  flow();
  return () => {
    clearTimeout(timer);
    proxy.thaw();
  };
}
