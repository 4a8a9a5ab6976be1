import type { Socket } from 'node:net';
import type { TLSSocket } from 'node:tls';
import type { Server } from '@grpc/grpc-js';
import type { PeerIdentity } from '../identity/types.js';
import { CONNECTION_PROBE_INTERVAL_MS, MAX_CONNECTIONS_PER_PEER, MAX_HANDSHAKES } from '../limits.js';
import { isDead } from './dead-socket.js';

/** The sockets of one listener: those that have not proved anything yet, and those of known peers. */
export class ConnectionTable {
  /** In the order of their arrival, by remote address and port. */
  readonly #handshaking = new Map<string, Socket>();
  readonly #peers = new Map<string, { socket: TLSSocket; nodeId: string }>();
  /** Runs while there are peers. */
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
  addPeer(socket: TLSSocket, peer: PeerIdentity): boolean {
    const key = remoteOf(socket);
    this.#handshaking.delete(key);
    if (this.connectionsOf(peer.nodeId) >= MAX_CONNECTIONS_PER_PEER) return false;
    const entry = { socket, nodeId: peer.nodeId };
    this.#peers.set(key, entry);
    this.#probe ??= setInterval(() => this.#dropDead(), CONNECTION_PROBE_INTERVAL_MS).unref();
    socket.once('close', () => {
      if (this.#peers.get(key) === entry) this.#peers.delete(key);
      if (this.#peers.size === 0) this.#stopProbe();
    });
    return true;
  }

  #dropDead(): void {
    for (const { socket } of this.#peers.values()) if (isDead(socket)) socket.destroy();
  }

  #stopProbe(): void {
    if (this.#probe !== null) clearInterval(this.#probe);
    this.#probe = null;
  }

  connectionsOf(nodeId: string): number {
    let count = 0;
    for (const entry of this.#peers.values()) if (entry.nodeId === nodeId) count += 1;
    return count;
  }

  /** Breaks every connection of the peer, with all that runs on them. @returns how many there were */
  disconnectPeer(nodeId: string): number {
    const sockets = [...this.#peers.values()].filter((entry) => entry.nodeId === nodeId);
    for (const { socket } of sockets) socket.destroy();
    return sockets.length;
  }

  /** @param remote "address:port" as ServerSurfaceCall.getPeer() gives it */
  disconnect(remote: string): void {
    this.#peers.get(remote)?.socket.destroy();
  }

  disconnectAll(): void {
    for (const socket of this.#handshaking.values()) socket.destroy();
    for (const { socket } of this.#peers.values()) socket.destroy();
  }

  get size(): number {
    return this.#handshaking.size + this.#peers.size;
  }
}

/** The form of ServerSurfaceCall.getPeer(). */
function remoteOf(socket: Socket): string {
  return `${socket.remoteAddress ?? 'unknown'}:${socket.remotePort ?? 0}`;
}

const tables = new WeakMap<Server, ConnectionTable>();

/** The table that the services of a server and its listeners share. */
export function connectionsOf(server: Server): ConnectionTable {
  let table = tables.get(server);
  if (table === undefined) {
    table = new ConnectionTable();
    tables.set(server, table);
  }
  return table;
}
