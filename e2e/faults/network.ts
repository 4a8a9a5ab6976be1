import { readFileSync, readlinkSync, readdirSync } from 'node:fs';
import { FaultProxy, type ProxiedConnection } from '@muser/testing';
import { until } from './until.js';

/** A proxy that knows which process each connection comes from. */
export class Link {
  readonly #connections: { owner: number | null; readonly connection: ProxiedConnection }[] = [];
  /** Whose connections are ended at once. */
  #down: number | 'starting' | null = null;
  /** Called for a new connection of a process before its first byte passes. */
  #onConnect: { owner: number; call: (connection: ProxiedConnection) => void } | null = null;

  private constructor(
    readonly proxy: FaultProxy,
    private readonly owners: () => readonly number[],
  ) {}

  /** @param owners the processes that may connect */
  static async listen(owners: () => readonly number[]): Promise<Link> {
    let link: Link | null = null;
    const proxy = await FaultProxy.listen({
      target: { host: '127.0.0.1', port: 1 },
      faults: (_index, connection) => {
        link?.join(connection);
        return {};
      },
    });
    link = new Link(proxy, owners);
    return link;
  }

  /** The newest open connection of a process. */
  connectionOf(owner: number): ProxiedConnection | null {
    for (const one of this.#connections) {
      // A process that is starting connects before anybody knows that it will be ready.
      if (one.owner === null && one.connection.isOpen) one.owner = this.ownerOf(one.connection);
    }
    const open = this.#connections.filter((one) => one.owner === owner && one.connection.isOpen);
    return open.at(-1)?.connection ?? null;
  }

  /** The next connection that a process makes; `call` runs before a byte of it passes. */
  onNextConnection(owner: number, call: (connection: ProxiedConnection) => void): void {
    this.#onConnect = { owner, call };
  }

  /** From now on a process does not get through, or one that nobody knows yet because it is starting, until calm(). */
  goDown(owner: number | 'starting'): void {
    this.#down = owner;
    for (const one of this.#connections) if (one.owner === owner) one.connection.destroy();
  }

  /** Ends every connection that a process has now, and waits until they are gone. */
  async disconnect(owner: number): Promise<void> {
    const present = this.#connections.filter((one) => one.owner === owner).map(({ connection }) => connection);
    for (const connection of present) connection.destroy();
    await until('the connections are closed', () => !present.some(({ isOpen }) => isOpen));
  }

  /** Whatever was held goes on, and what is broken ends. */
  calm(): void {
    this.#onConnect = null;
    this.#down = null;
    for (const { connection } of this.#connections) {
      for (const direction of [connection.toServer, connection.toClient]) {
        direction.release();
        if (direction.isFaulty) connection.destroy();
      }
    }
    const gone = this.#connections.filter(({ connection }) => !connection.isOpen);
    for (const one of gone) this.#connections.splice(this.#connections.indexOf(one), 1);
  }

  close(): Promise<void> {
    return this.proxy.close();
  }

  private ownerOf({ clientPort }: ProxiedConnection): number | null {
    return this.owners().find((pid) => ownsPort(pid, clientPort)) ?? null;
  }

  private join(connection: ProxiedConnection): void {
    const owner = this.ownerOf(connection);
    this.#connections.push({ owner, connection });
    if (this.#down === (owner ?? 'starting')) return connection.destroy();
    if (this.#onConnect === null || this.#onConnect.owner !== owner) return;
    const { call } = this.#onConnect;
    this.#onConnect = null;
    call(connection);
  }
}

/** Whether a process has the socket that is bound to this port of the loopback address. */
function ownsPort(pid: number, port: number): boolean {
  const local = `0100007F:${port.toString(16).toUpperCase().padStart(4, '0')}`;
  const row = readFileSync('/proc/net/tcp', 'utf8')
    .split('\n')
    .map((line) => line.trim().split(/\s+/))
    .find((fields) => fields[1] === local && fields[9] !== '0');
  const inode = row?.[9];
  if (inode === undefined) return false;
  try {
    return readdirSync(`/proc/${pid}/fd`).some((fd) => linkOf(`/proc/${pid}/fd/${fd}`) === `socket:[${inode}]`);
  } catch {
    return false;
  }
}

function linkOf(path: string): string {
  try {
    return readlinkSync(path);
  } catch {
    return '';
  }
}
