import { createHash } from 'node:crypto';

import type { NodeStatus, SetPausedRequest } from '@muser/protocol';
import {
  addNodeService,
  createServer,
  formatTarget,
  PeerListener,
  type Identity,
  type WatchCall,
} from '@muser/transport';
import { onTestFinished } from 'vitest';

export const digest = (text: string): Uint8Array => createHash('sha256').update(text).digest();

export function statusOf(nodeId: string, change: Partial<NodeStatus> = {}): NodeStatus {
  return {
    nodeId,
    state: 'ready',
    model: { fingerprint: digest('fingerprint'), modelDigest: digest('producer weights'), name: 'muse-nano' },
    geometry: {
      layers: ['window', 'global'],
      kvHeads: 1,
      headDimension: 64,
      windowTokens: 256,
      ropeBase: 500_000,
      ropeLayers: 'window',
      vocabularySize: 1_000,
    },
    maxPromptTokens: 4_096,
    queueLength: 0,
    activeTransfers: 0,
    prefillTokensPerSecond: 1_000,
    backend: 'stand-in',
    version: '0.0.0',
    sentAtMs: Date.now(),
    reason: '',
    unloaded: false,
    ...change,
  };
}

type OrderCall = WatchCall<SetPausedRequest, NodeStatus>;

/** A real peer with the Node service: sends its status when it is asked, and again when a test changes it. */
export class StandInProducer {
  readonly target: string;
  watchers = 0;
  /** Every order that came. */
  readonly orders: SetPausedRequest[] = [];
  /** What becomes of an order: at once as it says, unless a test wants something else. */
  onOrder = async (call: OrderCall): Promise<void> => {
    await call.send(this.#status);
    this.send({ state: call.request.paused ? 'paused' : 'ready' });
    await call.send(this.#status);
  };
  readonly #listener: PeerListener;
  readonly #wake = new Set<() => void>();
  #status: NodeStatus;

  private constructor(listener: PeerListener, status: NodeStatus) {
    this.#listener = listener;
    this.#status = status;
    this.target = formatTarget(listener.address);
  }

  static async listen(identity: Identity, options: { port?: number; status?: Partial<NodeStatus> } = {}) {
    const server = createServer();
    const served: { producer?: StandInProducer } = {};
    addNodeService(server, {
      authorize: () => undefined,
      watch: async (call) => {
        await served.producer?.serve(call.signal, (status) => call.send(status));
      },
      setPaused: async (call) => {
        served.producer?.orders.push(call.request);
        await served.producer?.onOrder(call);
      },
    });
    const listener = await PeerListener.listen({ identity, host: '127.0.0.1', port: options.port ?? 0, server });
    const producer = new StandInProducer(listener, statusOf(identity.nodeId, options.status));
    served.producer = producer;
    onTestFinished(() => producer.close());
    return producer;
  }

  get port(): number {
    return this.#listener.address.port;
  }

  send(change: Partial<NodeStatus> = {}): void {
    this.#status = { ...this.#status, ...change };
    for (const wake of this.#wake) wake();
  }

  close(): Promise<void> {
    return this.#listener.close(0);
  }

  private async serve(signal: AbortSignal, send: (status: NodeStatus) => Promise<void>): Promise<void> {
    this.watchers += 1;
    while (!signal.aborted) {
      await send(this.#status);
      await new Promise<void>((resolve) => {
        const wake = (): void => {
          this.#wake.delete(wake);
          signal.removeEventListener('abort', wake);
          resolve();
        };
        this.#wake.add(wake);
        signal.addEventListener('abort', wake);
      });
    }
    this.watchers -= 1;
  }
}
