import { ERROR_CODES, MuserError, withoutForeignText } from '@muser/protocol';
import {
  createHttpServer,
  ServiceError,
  type Clock,
  type ErrorReply,
  type HttpServer,
  type Logger,
} from '@muser/service-kit';

import type { EnrollmentOffice } from '../enrollment.js';
import type { CertificateRenewals } from '../nodes/certificate-renewals.js';
import type { NodeDirectory } from '../nodes/directory.js';
import type { PauseOrders } from '../nodes/pause-orders.js';
import { changeBody, enrollBody, nodeParams, parseInput } from './bodies.js';
import { FailureLimit } from './failure-limit.js';
import { isSameToken } from './operator-token.js';
import { addPauseRoutes } from './pause-routes.js';
import { addRenewalRoutes } from './renewal-routes.js';
import { viewOf } from './views.js';

export interface OperatorApiOptions {
  host: string;
  coordinatorId: string;
  token: string;
  directory: NodeDirectory;
  office: EnrollmentOffice;
  pauseOrders: PauseOrders;
  renewals: CertificateRenewals;
  clock: Clock;
  logger: Logger;
}

type App = HttpServer['app'];

const BODY_LIMIT_BYTES = 64 * 1024;
const STATUS_TOO_MANY_REQUESTS = 429;

/**
 * The operator's HTTP API, on loopback: `GET /health` for anybody on this machine, `/api` with the operator's token.
 * Errors are `{ error: { code, message, retryable, details } }`.
 */
export function createOperatorApi(options: OperatorApiOptions): HttpServer {
  const { host, coordinatorId, logger } = options;
  const server = createHttpServer({
    name: 'the operator API',
    host,
    logger,
    bodyLimitBytes: BODY_LIMIT_BYTES,
    toReply: replyTo,
  });
  server.app.get('/health', () => ({ status: 'ok', nodeId: coordinatorId }));
  void server.app.register(
    (api, _options, done) => {
      requireToken(api, options);
      addNodeRoutes(api, options);
      addPauseRoutes(api, options.pauseOrders);
      addRenewalRoutes(api, options.renewals);
      done();
    },
    { prefix: '/api' },
  );
  return server;
}

function requireToken(api: App, { token, clock, logger }: OperatorApiOptions): void {
  const limit = new FailureLimit(clock);
  api.addHook('onRequest', async (request, reply) => {
    const given = /^Bearer ([\x21-\x7e]{1,256})$/.exec(request.headers.authorization ?? '')?.[1];
    if (given !== undefined && isSameToken(given, token)) return;
    const waitSeconds = limit.fail();
    if (waitSeconds === null) {
      logger.warn({ method: request.method, route: request.routeOptions.url }, 'request without the operator token');
      throw new MuserError(
        'UNAUTHENTICATED',
        "send the operator's token: Authorization: Bearer <stateDir/operator.token>",
      );
    }
    const error = new MuserError('RESOURCE_EXHAUSTED', 'too many requests without the operator token');
    await reply
      .status(STATUS_TOO_MANY_REQUESTS)
      .header('retry-after', String(waitSeconds))
      .send({ error: error.toJSON() });
  });
}

function addNodeRoutes(api: App, { directory, office, logger }: OperatorApiOptions): void {
  api.get('/nodes', () => ({ nodes: directory.list().map(viewOf) }));

  api.post('/nodes', async (request) => {
    const { node, bundle } = await office.enroll(parseInput(enrollBody, request.body));
    return { node: viewOf(node), bundle };
  });

  api.patch('/nodes/:id', async (request) => {
    const { id } = parseInput(nodeParams, request.params);
    const { name, addresses } = parseInput(changeBody, request.body);
    const node = await directory.change(id, { ...(name !== undefined && { name }), ...(addresses && { addresses }) });
    logger.info({ nodeId: id }, 'node changed');
    return { node: viewOf(node) };
  });

  api.delete('/nodes/:id', async (request) => {
    const { id } = parseInput(nodeParams, request.params);
    const node = await directory.revoke(id);
    logger.info({ nodeId: id }, 'node revoked');
    return { node: viewOf(node) };
  });
}

function replyTo(thrown: unknown): ErrorReply {
  const error =
    thrown instanceof ServiceError ? new MuserError(thrown.code, thrown.message) : withoutForeignText(thrown);
  return { status: ERROR_CODES[error.code].httpStatus, body: { error: error.toJSON() } };
}
