import type { AddressInfo } from 'node:net';

import { fastify, type FastifyInstance, type FastifyRequest } from 'fastify';

import { ServiceError, type ServiceErrorCode } from '../errors.js';
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
   * Puts an error (thrown by a handler, by the guard, or by fastify for a malformed request) into the API's own form.
   * Return null for the default, `{ error: { code, message } }`.
   */
  toReply?: (error: unknown, request: FastifyRequest) => ErrorReply | null;
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

/**
 * An HTTP server for programs on this machine. It listens on loopback only and answers 403 to whatever a web page could
 * send (see `refusalOf`). The time for receiving a request is bounded; an answer may stream for as long as it likes.
 */
export function createHttpServer(options: HttpServerOptions): HttpServer {
  const { name, host, logger } = options;
  if (!isLoopbackHost(host)) {
    throw new ServiceError('CONFIG_INVALID', `${name} listens on loopback only, not on ${host}: use 127.0.0.1 or ::1`);
  }
  const app = fastify({
    logger: false,
    bodyLimit: options.bodyLimitBytes,
    requestTimeout: REQUEST_TIMEOUT_MS,
    keepAliveTimeout: KEEP_ALIVE_TIMEOUT_MS,
    forceCloseConnections: 'idle',
    routerOptions: { maxParamLength: 256 },
  });
  app.server.headersTimeout = HEADERS_TIMEOUT_MS;
  app.server.maxConnections = MAX_CONNECTIONS;

  app.addHook('onRequest', (request, _reply, done) => {
    const refusal = refusalOf(request.headers, request.socket.localPort ?? -1);
    done(refusal === null ? undefined : new ServiceError('PERMISSION_DENIED', refusal));
  });
  app.setNotFoundHandler((request) => {
    throw new ServiceError('NOT_FOUND', `there is no ${request.method} at this path`);
  });
  app.setErrorHandler((error, request, reply) => {
    const { status, body } = options.toReply?.(error, request) ?? defaultReply(error);
    if (status >= 500)
      logger.error({ err: error, method: request.method, route: request.routeOptions.url }, 'request failed');
    void reply.status(status).send(body);
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
      const timer = setTimeout(() => app.server.closeAllConnections(), graceMs);
      try {
        await app.close();
      } finally {
        clearTimeout(timer);
      }
    },
  };
}

const STATUS_OF: Partial<Record<ServiceErrorCode, number>> = {
  PERMISSION_DENIED: 403,
  NOT_FOUND: 404,
};

function defaultReply(error: unknown): ErrorReply {
  const { statusCode, message } = error as { statusCode?: unknown; message?: unknown };
  if (error instanceof ServiceError) {
    return { status: STATUS_OF[error.code] ?? 500, body: { error: { code: error.code, message: error.message } } };
  }
  // Fastify's own errors for malformed requests carry a status; their messages do not quote the body.
  if (typeof statusCode === 'number' && statusCode >= 400 && statusCode < 500) {
    const code: ServiceErrorCode = statusCode === 413 ? 'MESSAGE_TOO_LARGE' : 'INVALID_REQUEST';
    return { status: statusCode, body: { error: { code, message: String(message) } } };
  }
  return { status: 500, body: { error: { code: 'INTERNAL', message: 'internal error' } } };
}

function listenError(error: unknown, what: string): Error {
  const reason = (error as NodeJS.ErrnoException).code ?? 'unknown reason';
  if (reason === 'EADDRINUSE') {
    return new ServiceError('PORT_IN_USE', `${what}: the port is taken; use another, or 0 for any`, { cause: error });
  }
  return new ServiceError('UNAVAILABLE', `${what} (${reason})`, { cause: error });
}
