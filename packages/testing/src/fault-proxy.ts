import { createServer, connect, type AddressInfo, type Server, type Socket } from 'node:net';
import { FaultyStream, type Faults } from './faults.js';

export interface ConnectionFaults {
  toServer?: Faults;
  toClient?: Faults;
}

export interface FaultProxyOptions {
  target: { host: string; port: number };
  /** Asked once for each connection; `index` counts them from 0. */
  faults?: (index: number) => ConnectionFaults;
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

  #join(client: Socket, { target, faults }: FaultProxyOptions): void {
    const { toServer = {}, toClient = {} } = faults?.(this.#accepted) ?? {};
    this.#accepted += 1;
    const link: Link = { client, server: connect({ ...target, allowHalfOpen: true }), cut: false };
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
    void this.#pump(link, link.client, link.server, toServer);
    void this.#pump(link, link.server, link.client, toClient);
  }

  /** Moves one direction; never rejects. */
  async #pump(link: Link, from: Socket, to: Socket, faults: Faults): Promise<void> {
    const line = faults.delayMs === undefined ? null : new DelayLine(faults.delayMs, (chunk) => write(to, chunk));
    const stream = new FaultyStream(faults);
    try {
      // An iterator that ends the socket itself would break half-closed connections.
      for await (const received of from.iterator({ destroyOnReturn: false })) {
        if (link.cut) continue;
        const { bytes, end } = stream.next(received as Buffer);
        for (const piece of paced(bytes, faults.bytesPerSecond)) {
          await this.#frozen?.promise;
          if (line === null) await write(to, piece);
          else await line.push(piece);
          if (faults.bytesPerSecond !== undefined) await sleep((1_000 * piece.length) / faults.bytesPerSecond);
        }
        if (end === null) continue;
        await line?.drained();
        if (end === 'cut' || end === 'reset') return (end === 'cut' ? cut : resetBoth)(link, from, to);
        if (end === 'half-open') closeOne(link, to);
        // Open and silent until somebody ends the connection; leaving the loop here would do that.
        await new Promise((resolve) => from.once('close', resolve));
      }
      await line?.drained();
      await this.#frozen?.promise;
      if (!link.cut) to.end();
    } catch {
      destroy(link);
    }
  }
}

/** Pieces of 20 ms each, so that a slow link looks slow and not bursty. */
function* paced(chunk: Buffer, bytesPerSecond: number | undefined): Generator<Buffer> {
  const size = bytesPerSecond === undefined ? Math.max(1, chunk.length) : Math.max(1, Math.floor(bytesPerSecond / 50));
  for (let start = 0; start < chunk.length; start += size) yield chunk.subarray(start, start + size);
}

/** Hands on what was pushed after a fixed time, in order. */
class DelayLine {
  static readonly MAX_BYTES = 64 * 1024 * 1024;
  readonly #delayMs: number;
  readonly #deliver: (chunk: Buffer) => Promise<void>;
  #last: Promise<void> = Promise.resolve();
  #bytes = 0;

  constructor(delayMs: number, deliver: (chunk: Buffer) => Promise<void>) {
    this.#delayMs = delayMs;
    this.#deliver = deliver;
  }

  async push(chunk: Buffer): Promise<void> {
    const due = Date.now() + this.#delayMs;
    this.#bytes += chunk.length;
    const before = this.#last;
    this.#last = (async () => {
      await before;
      await sleep(due - Date.now());
      await this.#deliver(chunk);
      this.#bytes -= chunk.length;
    })();
    // A failed write is reported by the next push or by drained().
    this.#last.catch(() => undefined);
    if (this.#bytes > DelayLine.MAX_BYTES) await this.#last;
  }

  drained(): Promise<void> {
    return this.#last;
  }
}

function write(socket: Socket, chunk: Buffer): Promise<void> {
  return new Promise((resolve, reject) => {
    if (chunk.length === 0) resolve();
    else socket.write(chunk, (error) => (error == null ? resolve() : reject(error)));
  });
}

function sleep(milliseconds: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, Math.max(0, milliseconds)));
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
