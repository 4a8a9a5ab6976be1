import type { Socket } from 'node:net';
import type { TLSSocket } from 'node:tls';
import { MuserError } from '@muser/protocol';
import type { PeerIdentity } from '../identity/types.js';
import {
  CALL_COST_BYTES,
  CONNECTION_PROBE_INTERVAL_MS,
  MAX_CALLS_PER_PEER,
  MAX_CONNECTIONS_PER_PEER,
  MAX_HANDSHAKES,
  REQUEST_TIMEOUT_MS,
} from '../limits.js';
import { isDead } from './dead-socket.js';
import { InboundAllowance } from './inbound-allowance.js';

/** What is known of a node as long as this process runs, over all its connections. */
interface Peer {
  readonly nodeId: string;
  readonly allowance: InboundAllowance;
  calls: number;
}

interface Connection {
  readonly socket: TLSSocket;
  readonly peer: Peer;
  /** When it is dropped unless there is a call; null after the first. */
  firstCallBy: number | null;
  /** As of the last check. */
  readBytes: number;
  /** What the calls since then count as. */
  callBytes: number;
}

/** A call that runs. */
export interface RunningCall {
  readonly nodeId: string;
  /** To be called once. */
  end(): void;
}

export interface ConnectionLogger {
  warn(fields: object, message: string): void;
}

/** The sockets of one server: those that have not proved anything yet, and those of known peers. */
export class ConnectionTable {
  /** In the order of their arrival, by remote address and port. */
  readonly #handshaking = new Map<string, Socket>();
  readonly #connections = new Map<string, Connection>();
  /** Those that have been seen: as many as are enrolled. */
  readonly #peers = new Map<string, Peer>();
  /** Runs while there are connections. */
  #probe: NodeJS.Timeout | null = null;

  /** Takes note of a connection that has just been accepted; beyond MAX_HANDSHAKES the oldest one is dropped. */
  addHandshake(socket: Socket): void {
    const key = remoteOf(socket);
    this.#handshaking.set(key, socket);
    socket.once('close', () => {
      if (this.#handshaking.get(key) === socket) this.#handshaking.delete(key);
    });
    if (this.#handshaking.size <= MAX_HANDSHAKES) return;
    const [oldest] = this.#handshaking.values();
    oldest?.destroy();
  }

  /** @returns false when the peer has too many connections already (the new one is not added) */
  addPeer(socket: TLSSocket, { nodeId }: PeerIdentity, logger?: ConnectionLogger): boolean {
    const key = remoteOf(socket);
    this.#handshaking.delete(key);
    if (this.connectionsOf(nodeId) >= MAX_CONNECTIONS_PER_PEER) return false;
    const firstCallBy = performance.now() + REQUEST_TIMEOUT_MS;
    const connection = { socket, peer: this.#peer(nodeId), firstCallBy, readBytes: 0, callBytes: 0 };
    this.#connections.set(key, connection);
    this.#probe ??= setInterval(() => this.#check(logger), CONNECTION_PROBE_INTERVAL_MS).unref();
    socket.once('close', () => {
      if (this.#connections.get(key) === connection) this.#connections.delete(key);
      if (this.#connections.size === 0) this.#stopProbe();
    });
    return true;
  }

  /**
   * Takes note of a call on a connection.
   *
   * @param remote "address:port" as ServerInterceptingCall.getPeer() gives it
   * @throws MuserError RESOURCE_EXHAUSTED when the peer has too many, UNAUTHENTICATED when there is no such connection
   */
  beginCall(remote: string): RunningCall {
    const connection = this.#connections.get(remote);
    if (connection === undefined) throw new MuserError('UNAUTHENTICATED', 'the connection of the call is gone');
    connection.firstCallBy = null;
    const { peer } = connection;
    connection.callBytes += CALL_COST_BYTES;
    if (peer.calls >= MAX_CALLS_PER_PEER) {
      const message = `${peer.nodeId} has ${peer.calls} calls that run here; the limit is ${MAX_CALLS_PER_PEER}`;
      throw new MuserError('RESOURCE_EXHAUSTED', message);
    }
    peer.calls += 1;
    return { nodeId: peer.nodeId, end: () => (peer.calls -= 1) };
  }

  #peer(nodeId: string): Peer {
    let peer = this.#peers.get(nodeId);
    if (peer === undefined) {
      peer = { nodeId, allowance: new InboundAllowance(performance.now()), calls: 0 };
      this.#peers.set(nodeId, peer);
    }
    return peer;
  }

  #check(logger: ConnectionLogger | undefined): void {
    const now = performance.now();
    for (const connection of [...this.#connections.values()]) {
      const { socket, peer, firstCallBy } = connection;
      const received = socket.bytesRead - connection.readBytes + connection.callBytes;
      connection.readBytes = socket.bytesRead;
      connection.callBytes = 0;
      if (!peer.allowance.take(received, now)) {
        logger?.warn({ nodeId: peer.nodeId }, 'connection dropped: the peer sends more than any call needs');
        socket.destroy();
      } else if (isDead(socket) || (firstCallBy !== null && now > firstCallBy)) socket.destroy();
    }
  }

  #stopProbe(): void {
    if (this.#probe !== null) clearInterval(this.#probe);
    this.#probe = null;
  }

  connectionsOf(nodeId: string): number {
    return this.#socketsOf(nodeId).length;
  }

  #socketsOf(nodeId: string): TLSSocket[] {
    return [...this.#connections.values()].flatMap(({ socket, peer }) => (peer.nodeId === nodeId ? [socket] : []));
  }

  /** Breaks every connection of the peer, with all that runs on them. @returns how many there were */
  disconnectPeer(nodeId: string): number {
    const sockets = this.#socketsOf(nodeId);
    for (const socket of sockets) socket.destroy();
    return sockets.length;
  }

  /** @param remote "address:port" as ServerSurfaceCall.getPeer() gives it */
  disconnect(remote: string): void {
    this.#connections.get(remote)?.socket.destroy();
  }

  disconnectAll(): void {
    for (const socket of this.#handshaking.values()) socket.destroy();
    for (const { socket } of this.#connections.values()) socket.destroy();
  }

  get size(): number {
    return this.#handshaking.size + this.#connections.size;
  }
}

/** The form of ServerSurfaceCall.getPeer(). */
function remoteOf(socket: Socket): string {
  return `${socket.remoteAddress ?? 'unknown'}:${socket.remotePort ?? 0}`;
}
