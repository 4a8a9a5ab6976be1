import { randomBytes, timingSafeEqual } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { MuserError } from '@muser/protocol';
import type { Logger } from '@muser/service-kit';

import { FrameConnection } from './connection.js';
import {
  BRIDGE_LIMITS,
  type ControlHello,
  type DataHello,
  type Link,
  SETTINGS_FIELDS,
  type WorkerFrame,
} from './schema.js';

const SECRET_BYTES = 32;
const MAX_CONNECTIONS = 512;
/** Where sockets go when the usual folder's name is too long for one. */
const SHORT_FOLDER = '/tmp';

export interface ServerEvents {
  /** A connection has proved that it is the worker's. Its frames wait until the handler hands them on with `handTo`. */
  onControl(connection: FrameConnection, hello: ControlHello): void;
  onData(connection: FrameConnection, hello: DataHello): void;
}

/**
 * The two sockets that one worker dials, in a folder that only this user can enter, with a secret that only this worker
 * gets. A connection that does not begin with the right hello, in time, is closed.
 */
export class SocketServer {
  readonly controlSocket: string;
  readonly dataSocket: string;
  /** Hexadecimal. */
  readonly secret: string;
  readonly #folder: string;
  readonly #events: ServerEvents;
  readonly #logger: Logger;
  readonly #helloTimeoutMs: number;
  readonly #connections = new Set<FrameConnection>();
  readonly #servers: Server[] = [];

  private constructor(folder: string, events: ServerEvents, logger: Logger, helloTimeoutMs: number) {
    this.#folder = folder;
    this.#events = events;
    this.#logger = logger;
    this.#helloTimeoutMs = helloTimeoutMs;
    this.secret = randomBytes(SECRET_BYTES).toString('hex');
    this.controlSocket = join(folder, 'control.sock');
    this.dataSocket = join(folder, 'data.sock');
  }

  static async listen(
    events: ServerEvents,
    logger: Logger,
    helloTimeoutMs: number = BRIDGE_LIMITS.helloTimeoutMs,
  ): Promise<SocketServer> {
    const folder = await privateFolder();
    const server = new SocketServer(folder, events, logger, helloTimeoutMs);
    try {
      await server.#open('control', server.controlSocket);
      await server.#open('data', server.dataSocket);
      return server;
    } catch (error) {
      await server.close();
      throw error;
    }
  }

  /** Closes every connection and removes the folder. */
  async close(): Promise<void> {
    for (const connection of this.#connections) connection.close();
    await Promise.all(this.#servers.splice(0).map((server) => new Promise((resolve) => server.close(resolve))));
    await rm(this.#folder, { recursive: true, force: true });
  }

  async #open(link: Link, path: string): Promise<void> {
    const server = createServer((socket) => this.#greet(link, socket));
    server.maxConnections = MAX_CONNECTIONS;
    this.#servers.push(server);
    server.listen(path);
    await once(server, 'listening');
  }

  #greet(link: Link, socket: Socket): void {
    const connection: FrameConnection = new FrameConnection(socket, link, (frame) => {
      clearTimeout(late);
      this.#admit(connection, link, frame);
    });
    const late = setTimeout(() => {
      connection.close(new MuserError('DEADLINE_EXCEEDED', `no hello within ${this.#helloTimeoutMs} ms`));
    }, this.#helloTimeoutMs);
    this.#connections.add(connection);
    void connection.closed.then((error) => {
      clearTimeout(late);
      this.#connections.delete(connection);
      if (error !== null) this.#logger.warn({ code: error.code, reason: error.message, link }, 'bridge closed');
    });
  }

  #admit(connection: FrameConnection, link: Link, { kind, header }: WorkerFrame): void {
    if (kind !== 'hello') throw new MuserError('ORDER_VIOLATION', `${kind} came before hello`);
    if (!sameSecret(header.secret, this.secret)) {
      throw new MuserError('UNAUTHENTICATED', `process ${header.pid} has not the secret of this worker`);
    }
    if (header.role !== link) throw new MuserError('ORDER_VIOLATION', `${header.role} on the ${link} link`);
    if (header.role === 'control') this.#events.onControl(connection, header);
    else this.#events.onData(connection, header);
  }
}

/** Folders made by mkdtemp are closed to others. */
async function privateFolder(): Promise<string> {
  const longest = SETTINGS_FIELDS['dataSocket']?.maxBytes ?? 0;
  const prefix = 'muser-bridge-';
  const fits = Buffer.byteLength(join(tmpdir(), `${prefix}XXXXXX`, 'control.sock')) <= longest;
  return mkdtemp(join(fits ? tmpdir() : SHORT_FOLDER, prefix));
}

function sameSecret(given: string, secret: string): boolean {
  const [a, b] = [Buffer.from(given), Buffer.from(secret)];
  return a.length === b.length && timingSafeEqual(a, b);
}
