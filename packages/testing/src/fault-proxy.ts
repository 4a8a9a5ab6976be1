import { createServer, connect, type AddressInfo, type Server, type Socket } from 'node:net';
import { Direction } from './fault-direction.js';
import { type Faults } from './faults.js';

export interface ConnectionFaults {
  toServer?: Faults;
  toClient?: Faults;
}

export interface FaultProxyOptions {
  target: { host: string; port: number };
  /** Asked once for each connection, before its first byte passes; `index` counts them from 0. */
  faults?: (index: number, connection: ProxiedConnection) => ConnectionFaults;
}

/** One connection through the proxy, for faults that are decided while it lives. */
export interface ProxiedConnection {
  /** The client's own port, which tells one client from another. */
  readonly clientPort: number;
  readonly toServer: Direction;
  readonly toClient: Direction;
  /** False once neither side has its socket any more. */
  readonly isOpen: boolean;
  /** Ends it at once, without a word of why. */
  destroy: () => void;
}

interface Link {
  client: Socket;
  server: Socket;
  /** Ended by a fault: what still comes is thrown away, and one socket's end is not handed on to the other. */
  cut: boolean;
}

/** A TCP proxy between two real peers that breaks their connection in a way that can be repeated byte by byte. */
export class FaultProxy {
  readonly address: { host: string; port: number };
  readonly #listener: Server;
  readonly #links = new Set<Link>();
  #target: { host: string; port: number };
  #frozen: { promise: Promise<void>; thaw: () => void } | null = null;
  #accepted = 0;

  static async listen(options: FaultProxyOptions): Promise<FaultProxy> {
    // Half-closed connections pass as such.
    const listener = createServer({ allowHalfOpen: true });
    await new Promise<void>((resolve, reject) => {
      listener.once('error', reject);
      listener.listen(0, '127.0.0.1', resolve);
    });
    return new FaultProxy(listener, options);
  }

  private constructor(listener: Server, options: FaultProxyOptions) {
    this.#listener = listener;
    this.#target = options.target;
    this.address = { host: '127.0.0.1', port: (listener.address() as AddressInfo).port };
    listener.on('connection', (client) => this.#join(client, options));
  }

  /** "host:port" for a client. */
  get target(): string {
    return `${this.address.host}:${this.address.port}`;
  }

  get connectionsAccepted(): number {
    return this.#accepted;
  }

  get connectionsOpen(): number {
    return this.#links.size;
  }

  /** Where new connections go from now on: a server that was started again has another port. */
  retarget(target: { host: string; port: number }): void {
    this.#target = target;
  }

  /** Nothing passes in either direction until thaw(), while every connection stays open (a half-open peer, a pulled cable). */
  freeze(): void {
    if (this.#frozen !== null) return;
    let thaw!: () => void;
    const promise = new Promise<void>((resolve) => (thaw = resolve));
    this.#frozen = { promise, thaw };
  }

  thaw(): void {
    this.#frozen?.thaw();
    this.#frozen = null;
  }

  /** Ends every connection at once; new ones are accepted. */
  reset(): void {
    for (const link of this.#links) destroy(link);
  }

  async close(): Promise<void> {
    const closed = new Promise<void>((resolve) => this.#listener.close(() => resolve()));
    this.reset();
    this.thaw();
    await closed;
  }

  #join(client: Socket, { faults }: FaultProxyOptions): void {
    const link: Link = { client, server: connect({ ...this.#target, allowHalfOpen: true }), cut: false };
    this.#links.add(link);
    for (const socket of [link.client, link.server]) {
      socket.setNoDelay(true);
      socket.on('error', () => destroy(link));
      socket.on('close', () => {
        const regular = socket.readableEnded && socket.writableFinished;
        if (!regular && !link.cut) destroy(link);
        if (client.destroyed && link.server.destroyed) this.#links.delete(link);
      });
    }
    const toServer = this.#direction(link, link.client, link.server);
    const toClient = this.#direction(link, link.server, link.client);
    const connection: ProxiedConnection = {
      clientPort: client.remotePort ?? 0,
      toServer,
      toClient,
      get isOpen() {
        return !(client.destroyed && link.server.destroyed);
      },
      destroy: () => destroy(link),
    };
    const wanted = faults?.(this.#accepted, connection) ?? {};
    this.#accepted += 1;
    if (wanted.toServer !== undefined) toServer.become(wanted.toServer);
    if (wanted.toClient !== undefined) toClient.become(wanted.toClient);
    void this.#pump(link, link.client, link.server, toServer);
    void this.#pump(link, link.server, link.client, toClient);
  }

  #direction(link: Link, from: Socket, to: Socket): Direction {
    return new Direction({
      write: async (piece) => {
        await this.#frozen?.promise;
        if (!link.cut) await write(to, piece);
      },
      end: (how) => {
        if (how === 'cut') cut(link, from, to);
        else if (how === 'reset') resetBoth(link);
        else if (how === 'half-open') closeOne(link, to);
      },
      fail: () => destroy(link),
    });
  }

  /** Moves one direction; never rejects. */
  async #pump(link: Link, from: Socket, to: Socket, direction: Direction): Promise<void> {
    try {
      // An iterator that ends the socket itself would break half-closed connections.
      for await (const received of from.iterator({ destroyOnReturn: false })) {
        if (link.cut) continue;
        await direction.take(received as Buffer);
        // Open and silent until somebody ends the connection; leaving the loop here would do that.
        if (direction.hasEnded && !from.destroyed) await new Promise((resolve) => from.once('close', resolve));
      }
      await direction.drained();
      await this.#frozen?.promise;
      if (!link.cut) to.end();
    } catch {
      destroy(link);
    }
  }
}

function write(socket: Socket, chunk: Buffer): Promise<void> {
  return new Promise((resolve, reject) => {
    if (chunk.length === 0) resolve();
    else socket.write(chunk, (error) => (error == null ? resolve() : reject(error)));
  });
}

/**
 * Ends the connection so that the receiver gets every byte before its end: a reset, or closing a socket with unread bytes,
 * would throw away what has arrived but has not been read.
 */
function cut(link: Link, from: Socket, to: Socket): void {
  link.cut = true;
  from.destroy();
  to.end();
}

/** A TCP reset for both ends. */
function resetBoth(link: Link): void {
  link.cut = true;
  for (const socket of [link.client, link.server]) {
    // resetAndDestroy() would end the connection regularly first: the peer could take it for a right end.
    socket.destroySoon = () => void socket.destroy();
    socket.resetAndDestroy();
  }
}

/** Ends one side's connection only; the other side's stays as it is until its own peer ends it. */
function closeOne(link: Link, socket: Socket): void {
  link.cut = true;
  socket.end();
}

function destroy({ client, server }: Link): void {
  // Not resetAndDestroy(): it waits until everything has been written, which a stalled peer never allows.
  client.destroy();
  server.destroy();
}
