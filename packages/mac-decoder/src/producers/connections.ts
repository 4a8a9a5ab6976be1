import { MuserError, toMuserError, type ProducerEntry, type ProducerList } from '@muser/protocol';
import { PeerClient, type LiveIdentity } from '@muser/transport';

interface Connection {
  readonly target: string;
  readonly client: PeerClient;
  /** How many run on it. */
  transfers: number;
}

/** The connections to one producer. */
interface Peer {
  /** New transfers begin here; null when the last one failed. */
  current: Connection | null;
  /** The current one, and former ones on which transfers still run. */
  readonly open: Set<Connection>;
  isRevoked: boolean;
}

/** Failures after which another address of the same producer is worth a try: nothing was sent yet. */
const OTHER_ADDRESS = new Set(['PEER_UNREACHABLE', 'PEER_IDENTITY']);

/** One connection to each producer, kept between requests, at the address that worked last. */
export class ProducerConnections {
  private readonly peers = new Map<string, Peer>();

  /** Transfers go on where they began when the certificate is renewed; others begin with the new one. */
  constructor(private readonly identity: LiveIdentity) {
    identity.onRenewal(() => {
      for (const peer of this.peers.values()) {
        const former = peer.current;
        peer.current = null;
        if (former !== null) closeUnused(peer, former);
      }
    });
  }

  /**
   * One transfer's frames, from the first address of the producer that answers.
   * @throws MuserError of the first address when none does.
   */
  async *prefill(
    entry: ProducerEntry,
    requestBytes: Buffer,
    options: { signal: AbortSignal; deadlineMs: number; idleTimeoutMs: number },
  ): AsyncGenerator<Buffer, void, undefined> {
    const peer = this.peerOf(entry);
    let firstFailure: MuserError | null = null;
    for (const target of addressesOf(entry, peer)) {
      let received = false;
      let connection: Connection | null = null;
      try {
        connection = this.connect(peer, entry, target);
        for await (const frame of connection.client.prefill(requestBytes, options)) {
          received = true;
          yield frame;
        }
        return;
      } catch (error) {
        if (peer.isRevoked && !options.signal.aborted) throw revoked(entry, error);
        const failure = toMuserError(error, 'PEER_UNREACHABLE');
        // The call that was lost on the first address may have arrived: then the same transfer is what is running there.
        if (failure.code === 'NONCE_ACTIVE' && firstFailure !== null) throw firstFailure;
        if (received || !OTHER_ADDRESS.has(failure.code)) throw failure;
        if (peer.current === connection) peer.current = null;
        firstFailure ??= failure;
      } finally {
        if (connection !== null) leave(peer, connection);
      }
    }
    throw firstFailure ?? new MuserError('PEER_UNREACHABLE', `The producer ${entry.name} has no address.`);
  }

  /** Breaks the connections to producers that are not enrolled any more, with the transfers on them. */
  keepEnrolled({ producers, unavailable }: ProducerList): void {
    const enrolled = new Set([...producers, ...unavailable].map(({ nodeId }) => nodeId));
    for (const [nodeId, peer] of this.peers) {
      if (enrolled.has(nodeId)) continue;
      peer.isRevoked = true;
      this.drop(nodeId, peer);
    }
  }

  close(): void {
    for (const [nodeId, peer] of this.peers) this.drop(nodeId, peer);
  }

  private drop(nodeId: string, { open }: Peer): void {
    for (const { client } of open) client.close();
    this.peers.delete(nodeId);
  }

  private peerOf({ nodeId }: ProducerEntry): Peer {
    let peer = this.peers.get(nodeId);
    if (peer === undefined) {
      peer = { current: null, open: new Set(), isRevoked: false };
      this.peers.set(nodeId, peer);
    }
    return peer;
  }

  private connect(peer: Peer, { nodeId }: ProducerEntry, target: string): Connection {
    const former = peer.current;
    if (former?.target === target) {
      former.transfers += 1;
      return former;
    }
    const expect = { role: 'producer', nodeId } as const;
    const client = PeerClient.connect({ identity: this.identity.current, target, expect });
    const connection = { target, client, transfers: 1 };
    peer.current = connection;
    peer.open.add(connection);
    if (former !== null) closeUnused(peer, former);
    return connection;
  }
}

/** Its connections were closed under the transfer; that the client was closed would tell nobody anything. */
function revoked({ name }: ProducerEntry, cause: unknown): MuserError {
  const message = `The producer ${name} was revoked: it is in the coordinator's list no more.`;
  return new MuserError('NODE_REVOKED', message, { cause });
}

/** The address of the current connection first. */
function addressesOf({ addresses }: ProducerEntry, { current }: Peer): string[] {
  return [...addresses].sort((a, b) => Number(b === current?.target) - Number(a === current?.target));
}

function leave(peer: Peer, connection: Connection): void {
  connection.transfers -= 1;
  closeUnused(peer, connection);
}

/** Transfers that were begun on a connection end on it, also when others are begun on a new one. */
function closeUnused(peer: Peer, connection: Connection): void {
  if (connection === peer.current || connection.transfers > 0) return;
  connection.client.close();
  peer.open.delete(connection);
}
