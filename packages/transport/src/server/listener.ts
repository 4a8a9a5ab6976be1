import type { AddressInfo, Socket } from 'node:net';
import {
  createServer as createTlsServer,
  type SecureContextOptions,
  type Server as TlsServer,
  type TLSSocket,
} from 'node:tls';
import { ServerCredentials, type Server } from '@grpc/grpc-js';
import { MuserError } from '@muser/protocol';
import { peerOf } from '../identity/peer.js';
import type { Identity, PeerIdentity } from '../identity/types.js';
import { HANDSHAKE_TIMEOUT_MS, MAX_CONNECTIONS } from '../limits.js';
import { formatTarget } from '../target.js';
import type { ConnectionTable } from './connections.js';
import { connectionsOf } from './server.js';

/** The two methods of a pino logger that are used here. */
export interface TransportLogger {
  debug(fields: object, message: string): void;
  warn(fields: object, message: string): void;
}

export interface ListenOptions {
  identity: Identity;
  /** Address to bind, without brackets. */
  host: string;
  /** 0 takes a free one. */
  port: number;
  server: Server;
  /** Peers that may not take part: their connections end soon, after the time that it takes to tell them why. */
  isBarred?: (nodeId: string) => boolean;
  logger?: TransportLogger;
}

/**
 * Our own TLS listener in front of a gRPC server. grpc-js' listener accepts TLS 1.2 and keeps silent connections for ever;
 * this one wants TLS 1.3, a client certificate of our CA that names a node, and HTTP/2, all within HANDSHAKE_TIMEOUT_MS.
 */
export class PeerListener {
  readonly address: { host: string; port: number };
  readonly #tls: TlsServer;
  readonly #server: Server;
  readonly #connections: ConnectionTable;
  readonly #drain: (graceMs: number) => void;
  #closing: Promise<void> | null = null;

  /** @throws MuserError PORT_IN_USE, UNAVAILABLE (the address cannot be bound) */
  static async listen(options: ListenOptions): Promise<PeerListener> {
    const { identity, server, logger } = options;
    const connections = connectionsOf(server);
    // The sockets are encrypted already when they get there.
    const injector = server.createConnectionInjector(ServerCredentials.createInsecure());
    const tls = createTlsServer({
      ...contextOf(identity),
      requestCert: true,
      rejectUnauthorized: true,
      ALPNProtocols: ['h2'],
      handshakeTimeout: HANDSHAKE_TIMEOUT_MS,
    });
    tls.maxConnections = MAX_CONNECTIONS;
    tls.on('connection', (socket: Socket) => connections.addHandshake(socket));
    tls.on('tlsClientError', (error, socket) => {
      reportRefusal(socket, error, logger);
      // Node leaves that to us, also after its own handshake timeout.
      socket.destroy();
    });
    tls.on('secureConnection', (socket) => {
      socket.on('error', (error) => logger?.debug({ reason: errorCode(error) }, 'connection broke'));
      const peer = admit(socket, connections, logger);
      if (peer === null) socket.destroy();
      else injector.injectConnection(socket);
      if (peer !== null && options.isBarred?.(peer.nodeId) === true) endSoon(socket);
    });
    const address = await bind(tls, options.host, options.port);
    // For example EMFILE on accept: the listener goes on, and the process must not end by an unhandled event.
    tls.on('error', (error) => logger?.warn({ reason: errorCode(error) }, 'a connection could not be accepted'));
    return new PeerListener(tls, server, connections, address, (graceMs) => injector.drain(graceMs));
  }

  private constructor(
    tls: TlsServer,
    server: Server,
    connections: ConnectionTable,
    address: { host: string; port: number },
    drain: (graceMs: number) => void,
  ) {
    this.#tls = tls;
    this.#server = server;
    this.#connections = connections;
    this.address = address;
    this.#drain = drain;
  }

  /** New connections get this certificate; those that are open, and the streams on them, go on. */
  useIdentity(identity: Identity): void {
    this.#tls.setSecureContext(contextOf(identity));
  }

  /** Breaks the peer's connections; streams on them end at once on both sides. @returns the number of connections */
  disconnectPeer(nodeId: string): number {
    return this.#connections.disconnectPeer(nodeId);
  }

  /** Accepts nothing new, lets running streams end for `graceMs`, then breaks what is left. */
  close(graceMs: number): Promise<void> {
    this.#closing ??= this.#close(graceMs);
    return this.#closing;
  }

  async #close(graceMs: number): Promise<void> {
    const closed = new Promise<void>((resolve) => this.#tls.close(() => resolve()));
    if (graceMs > 0) this.#drain(graceMs);
    else this.#connections.disconnectAll();
    const limit = setTimeout(() => this.#connections.disconnectAll(), graceMs);
    // Closed means that the last connection is gone, also one that was still in its handshake.
    await closed;
    clearTimeout(limit);
    this.#server.forceShutdown();
  }
}

/** A refused peer cannot be told why in its handshake, so the log of this side has to. */
function reportRefusal(socket: TLSSocket, error: Error, logger: TransportLogger | undefined): void {
  // Node gives the code of OpenSSL's check here, whatever the type says.
  const problem = String(socket.authorizationError);
  const clock = new Date().toISOString();
  if (problem === 'CERT_NOT_YET_VALID') {
    const reason = "its certificate is not yet valid by this machine's clock: set the clocks of both machines by NTP";
    logger?.warn({ code: 'CLOCK_SKEW', clock, reason }, 'handshake refused');
  } else if (problem === 'CERT_HAS_EXPIRED') {
    const reason = "its certificate has ended by this machine's clock: set the clock, or enroll that node again";
    logger?.warn({ code: 'CERTIFICATE_INVALID', clock, reason }, 'handshake refused');
  } else logger?.debug({ reason: errorCode(error), problem }, 'handshake refused');
}

function contextOf(identity: Identity): SecureContextOptions {
  return {
    key: identity.tlsKeyPem,
    cert: identity.tlsCertificatePem,
    ca: identity.caPem,
    minVersion: 'TLSv1.3',
  };
}

function admit(
  socket: TLSSocket,
  connections: ConnectionTable,
  logger: TransportLogger | undefined,
): PeerIdentity | null {
  const certificate = socket.getPeerX509Certificate();
  if (socket.alpnProtocol !== 'h2' || certificate === undefined) {
    logger?.debug({ remote: socket.remoteAddress }, 'connection without HTTP/2 refused');
    return null;
  }
  try {
    const peer = peerOf(certificate);
    if (connections.addPeer(socket, peer, logger)) return peer;
    logger?.warn({ nodeId: peer.nodeId }, 'connection refused: the peer has too many');
  } catch (error) {
    logger?.warn({ remote: socket.remoteAddress, reason: errorCode(error) }, 'connection refused: no node certificate');
  }
  return null;
}

/** The calls on it are refused with a code meanwhile, which a connection that just breaks cannot tell. */
function endSoon(socket: TLSSocket): void {
  const limit = setTimeout(() => socket.destroy(), HANDSHAKE_TIMEOUT_MS);
  socket.once('close', () => clearTimeout(limit));
}

function bind(tls: TlsServer, host: string, port: number): Promise<{ host: string; port: number }> {
  return new Promise((resolve, reject) => {
    const onError = (error: NodeJS.ErrnoException) => {
      const where = formatTarget({ host, port });
      const inUse = error.code === 'EADDRINUSE';
      const message = inUse
        ? `${where} is in use by another process; stop it or choose another port`
        : `cannot listen on ${where} (${errorCode(error)})`;
      reject(new MuserError(inUse ? 'PORT_IN_USE' : 'UNAVAILABLE', message, { cause: error }));
    };
    tls.once('error', onError);
    tls.listen({ host, port }, () => {
      tls.off('error', onError);
      const bound = tls.address() as AddressInfo;
      resolve({ host: bound.address, port: bound.port });
    });
  });
}

function errorCode(error: unknown): string {
  return error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : 'unknown';
}
