import { MuserError, toMuserError, type ProducerEntry } from '@muser/protocol';
import { PeerClient, type Identity } from '@muser/transport';

interface Connection {
  readonly target: string;
  readonly client: PeerClient;
}

/** Failures after which another address of the same producer is worth a try: nothing was sent yet. */
const OTHER_ADDRESS = new Set(['PEER_UNREACHABLE', 'PEER_IDENTITY']);

/** One connection to each producer, kept between requests, at the address that worked last. */
export class ProducerConnections {
  private readonly connections = new Map<string, Connection>();

  constructor(private readonly identity: Identity) {}

  /**
   * One transfer's frames, from the first address of the producer that answers.
   * @throws MuserError of the first address when none does.
   */
  async *prefill(
    entry: ProducerEntry,
    requestBytes: Buffer,
    options: { signal: AbortSignal; deadlineMs: number; idleTimeoutMs: number },
  ): AsyncGenerator<Buffer, void, undefined> {
    let firstFailure: MuserError | null = null;
    for (const target of this.addressesOf(entry)) {
      let received = false;
      try {
        const { client } = this.connectionTo(entry, target);
        for await (const frame of client.prefill(requestBytes, options)) {
          received = true;
          yield frame;
        }
        return;
      } catch (error) {
        const failure = toMuserError(error, 'PEER_UNREACHABLE');
        if (received || !OTHER_ADDRESS.has(failure.code)) throw failure;
        this.forget(entry.nodeId);
        firstFailure ??= failure;
      }
    }
    throw firstFailure ?? new MuserError('PEER_UNREACHABLE', `The producer ${entry.name} has no address.`);
  }

  /** Closes the connections to producers that are not in the list any more. */
  keepOnly(nodeIds: ReadonlySet<string>): void {
    for (const nodeId of [...this.connections.keys()]) if (!nodeIds.has(nodeId)) this.forget(nodeId);
  }

  close(): void {
    this.keepOnly(new Set());
  }

  private addressesOf(entry: ProducerEntry): string[] {
    const lastGood = this.connections.get(entry.nodeId)?.target;
    const others = entry.addresses.filter((address) => address !== lastGood);
    return lastGood !== undefined && others.length < entry.addresses.length ? [lastGood, ...others] : others;
  }

  private connectionTo(entry: ProducerEntry, target: string): Connection {
    const known = this.connections.get(entry.nodeId);
    if (known?.target === target) return known;
    known?.client.close();
    const client = PeerClient.connect({
      identity: this.identity,
      target,
      expect: { role: 'producer', nodeId: entry.nodeId },
    });
    const connection = { target, client };
    this.connections.set(entry.nodeId, connection);
    return connection;
  }

  private forget(nodeId: string): void {
    this.connections.get(nodeId)?.client.close();
    this.connections.delete(nodeId);
  }
}
