import { PROTOCOL_VERSION, type NodeStatus } from '@muser/protocol';
import { loadIdentity, PeerClient } from '@muser/transport';

const LIMIT_MS = 2_000;

/** Asks a producer how it is, as the coordinator does every second, whenever somebody wants to know. */
export class ProducerStatus {
  #peer: { target: string; client: PeerClient } | null = null;

  /** @param identity folder of the coordinator's */
  constructor(private readonly identity: string) {}

  async of(target: string, nodeId: string): Promise<NodeStatus> {
    if (this.#peer?.target !== target) {
      this.close();
      const identity = await loadIdentity(this.identity);
      const client = PeerClient.connect({ identity, target, expect: { role: 'producer', nodeId } });
      this.#peer = { target, client };
    }
    const request = { protocolVersion: PROTOCOL_VERSION, intervalMs: LIMIT_MS };
    for await (const status of this.#peer.client.watchNode(request, { idleTimeoutMs: LIMIT_MS })) return status;
    throw new Error('the producer ended the call');
  }

  close(): void {
    this.#peer?.client.close();
    this.#peer = null;
  }
}
