import { STATUS_CODES } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';

import { fastify, type FastifyInstance, type FastifyReply } from 'fastify';

import { ServiceError } from '../errors.js';
import type { Logger } from '../logging.js';
import { isLoopbackHost, refusalOf } from './guard.js';

/** What a client gets for an error. */
export interface ErrorReply {
  status: number;
  body: unknown;
}

export interface HttpServerOptions {
  name: string;
  /** A loopback address; anything else is refused. */
  host: string;
  logger: Logger;
  bodyLimitBytes: number;
  /**
   * Puts an error into the API's own form: what a handler threw, or a ServiceError of the guard or for a malformed
   * request (PERMISSION_DENIED, NOT_FOUND, INVALID_REQUEST, MESSAGE_TOO_LARGE) or one that comes while the server
   * closes (UNAVAILABLE).
   */
  toReply: (error: unknown) => ErrorReply;
}

export interface HttpServer {
  /** For routes and hooks, before `listen`. */
  readonly app: FastifyInstance;
  /** @throws ServiceError PORT_IN_USE */
  listen(port: number): Promise<{ host: string; port: number; url: string }>;
  /** Takes no new requests, waits `graceMs` for running ones, then cuts them off. */
  close(graceMs: number): Promise<void>;
}

const MAX_CONNECTIONS = 512;
const HEADERS_TIMEOUT_MS = 10_000;
const REQUEST_TIMEOUT_MS = 60_000;
const KEEP_ALIVE_TIMEOUT_MS = 10_000;
/** How often connections are looked for that are past a timeout; Node's own 30 s would add up to it. */
const CHECK_INTERVAL_MS = 1_000;

/**
 * An HTTP server for programs on this machine. It listens on loopback only and answers 403 to whatever a web page could
 * send (see `refusalOf`). The time for receiving a request is bounded; an answer may stream for as long as it likes.
 */
export function createHttpServer(options: HttpServerOptions): HttpServer {
  const { name, host, logger } = options;
  const answer = (error: unknown, reply: FastifyReply): number => {
    const { status, body } = options.toReply(asServiceError(error, options.bodyLimitBytes));
    void reply.status(status).send(body);
    return status;
  };
  if (!isLoopbackHost(host)) {
    throw new ServiceError('CONFIG_INVALID', `${name} listens on loopback only, not on ${host}: use 127.0.0.1 or ::1`);
  }
  const app = fastify({
    logger: false,
    http: { connectionsCheckingInterval: CHECK_INTERVAL_MS },
    bodyLimit: options.bodyLimitBytes,
    requestTimeout: REQUEST_TIMEOUT_MS,
    keepAliveTimeout: KEEP_ALIVE_TIMEOUT_MS,
    forceCloseConnections: 'idle',
    // Its answers have another form; see below.
    return503OnClosing: false,
    clientErrorHandler: (error, socket) => refuseRaw(error, socket, options.toReply),
    // For paths that cannot be routed (`/%zz`): these never reach the error handler below.
    frameworkErrors: (error, _request, reply) => answer(error, reply),
    routerOptions: { maxParamLength: 256 },
  });
  app.server.headersTimeout = HEADERS_TIMEOUT_MS;
  app.server.maxConnections = MAX_CONNECTIONS;

  let closing = false;
  app.addHook('onRequest', (request, reply, done) => {
    if (closing) {
      void reply.header('connection', 'close');
      return done(new ServiceError('UNAVAILABLE', `${name} is closing`));
    }
    const refusal = refusalOf(request.headers, request.socket.localPort ?? -1);
    done(refusal === null ? undefined : new ServiceError('PERMISSION_DENIED', refusal));
  });
  app.setNotFoundHandler((request) => {
    throw new ServiceError('NOT_FOUND', `there is no ${request.method} at this path`);
  });
  app.setErrorHandler((error, request, reply) => {
    if (answer(error, reply) >= 500)
      logger.error({ err: error, method: request.method, route: request.routeOptions.url }, 'request failed');
  });

  return {
    app,
    async listen(port) {
      try {
        await app.listen({ host, port });
      } catch (error) {
        throw listenError(error, `${name} cannot listen on ${host}:${port}`);
      }
      const { port: boundPort } = app.server.address() as AddressInfo;
      const shown = host.includes(':') ? `[${host}]` : host;
      return { host, port: boundPort, url: `http://${shown}:${boundPort}` };
    },
    async close(graceMs) {
      closing = true;
      const timer = setTimeout(() => app.server.closeAllConnections(), graceMs);
      try {
        await app.close();
      } finally {
        clearTimeout(timer);
      }
    },
  };
}

/** Fastify's own errors for malformed requests carry a status. Their messages may quote the body, so they stay in the cause. */
function asServiceError(error: unknown, bodyLimitBytes: number): unknown {
  const { statusCode } = error as { statusCode?: unknown };
  if (typeof statusCode !== 'number' || statusCode < 400 || statusCode >= 500) return error;
  if (statusCode === 413) {
    const message = `the request body has more than the ${bodyLimitBytes} bytes that are taken`;
    return new ServiceError('MESSAGE_TOO_LARGE', message, { cause: error });
  }
  const isPath = (error as { code?: unknown }).code === 'FST_ERR_BAD_URL';
  const message = isPath
    ? 'the path of the request is no valid URL'
    : 'the request is not valid: a JSON object is expected';
  return new ServiceError('INVALID_REQUEST', message, { cause: error });
}

/** Answers what Node could not read as an HTTP request, and ends the connection. */
function refuseRaw(error: Error, socket: Socket, toReply: HttpServerOptions['toReply']): void {
  if (socket.writable) {
    const cause = new ServiceError('INVALID_REQUEST', 'this is not a valid HTTP request', { cause: error });
    const { status, body } = toReply(cause);
    const text = JSON.stringify(body);
    const headers = `content-type: application/json\r\ncontent-length: ${Buffer.byteLength(text)}\r\nconnection: close`;
    socket.write(`HTTP/1.1 ${status} ${STATUS_CODES[status] ?? ''}\r\n${headers}\r\n\r\n${text}`);
  }
  socket.destroySoon();
}

function listenError(error: unknown, what: string): Error {
  const reason = (error as NodeJS.ErrnoException).code ?? 'unknown reason';
  if (reason === 'EADDRINUSE') {
    return new ServiceError('PORT_IN_USE', `${what}: the port is taken; use another, or 0 for any`, { cause: error });
  }
  return new ServiceError('UNAVAILABLE', `${what} (${reason})`, { cause: error });
}
