import { createHash } from 'node:crypto';

import type { IssuedCertificate, NodeStatus, RevokedNodes, SetPausedRequest } from '@muser/protocol';
import {
  addNodeService,
  createServer,
  formatTarget,
  LiveIdentity,
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
  /** Every list of revoked nodes that came. */
  readonly revoked: RevokedNodes[] = [];
  /** Called with each of them; throwing refuses it. */
  onRevoked: (nodes: RevokedNodes) => void = () => undefined;
  /** Every certificate that was installed. */
  readonly certificates: IssuedCertificate[] = [];
  /** What becomes of an order: at once as it says, unless a test wants something else. */
  onOrder = async (call: OrderCall): Promise<void> => {
    await call.send(this.#status);
    this.send({ state: call.request.paused ? 'paused' : 'ready' });
    await call.send(this.#status);
  };
  readonly #listener: PeerListener;
  readonly #wake = new Set<() => void>();
  readonly #now: () => number;
  #status: NodeStatus;

  private constructor(listener: PeerListener, status: NodeStatus, now: () => number) {
    this.#now = now;
    this.#listener = listener;
    this.#status = status;
    this.target = formatTarget(listener.address);
  }

  /**
   * @param options.folder where the identity is installed; its certificate can be renewed then
   * @param options.now the clock of its machine
   */
  static async listen(
    identity: Identity,
    options: { port?: number; status?: Partial<NodeStatus>; folder?: string; now?: () => number } = {},
  ) {
    const server = createServer();
    const served: { producer?: StandInProducer } = {};
    const live = new LiveIdentity(options.folder ?? '', identity);
    addNodeService(server, {
      authorize: () => undefined,
      watch: async (call) => {
        await served.producer?.serve(call.signal, (status) => call.send(status));
      },
      setPaused: async (call) => {
        served.producer?.orders.push(call.request);
        await served.producer?.onOrder(call);
      },
      setRevoked: ({ request }) => {
        served.producer?.onRevoked(request);
        served.producer?.revoked.push(request);
        return Promise.resolve({ version: request.version });
      },
      requestCertificate: () => live.request(),
      installCertificate: async ({ request }) => {
        await live.install(request.certificate);
        served.producer?.certificates.push(request);
        return { serial: live.serial };
      },
    });
    const listener = await PeerListener.listen({ identity, host: '127.0.0.1', port: options.port ?? 0, server });
    live.onRenewal((renewed) => listener.useIdentity(renewed));
    const producer = new StandInProducer(listener, statusOf(identity.nodeId, options.status), options.now ?? Date.now);
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
      await send({ ...this.#status, sentAtMs: this.#now() });
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
