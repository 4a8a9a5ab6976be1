import { join } from 'node:path';

import { ensurePrivateFolder, lockFolder, startParts, type Clock, type Closer, type Logger } from '@muser/service-kit';
import { addPlacementService, createServer, formatTarget, LiveIdentity, PeerListener } from '@muser/transport';

import { openKeys } from './ca/own-identity.js';
import type { CoordinatorConfig } from './config.js';
import { EnrollmentOffice } from './enrollment.js';
import { createOperatorApi } from './http/operator-api.js';
import { openOperatorToken } from './http/operator-token.js';
import { CertificateRenewals } from './nodes/certificate-renewals.js';
import { NodeDirectory } from './nodes/directory.js';
import { PauseOrders } from './nodes/pause-orders.js';
import { ProducerWatchers } from './nodes/producer-watchers.js';
import { PlacementService } from './placement/service.js';
import { SqliteStore } from './registry/sqlite-store.js';

export interface CoordinatorOptions {
  config: Pick<CoordinatorConfig, 'stateDir' | 'httpHost' | 'httpPort' | 'grpcHost' | 'grpcPort'>;
  clock: Clock;
  logger: Logger;
}

export interface RunningCoordinator {
  nodeId: string;
  /** URL of the operator API. */
  http: string;
  /** "host:port" for decoders. */
  grpc: string;
  close(): Promise<void>;
}

const HTTP_GRACE_MS = 1_000;
const GRPC_GRACE_MS = 500;

/**
 * Opens the state folder (only one process may have it), makes what is missing in it, and starts to serve and to watch.
 * Nothing is left open when it fails.
 *
 * @throws ServiceError or MuserError: STATE_LOCKED, CONFIG_INVALID (damaged or foreign state), UNAVAILABLE (the folder
 *   cannot be written), PORT_IN_USE
 */
export function startCoordinator(options: CoordinatorOptions): Promise<RunningCoordinator> {
  return startParts((onClose) => start(options, onClose));
}

async function start(
  { config, clock, logger }: CoordinatorOptions,
  onClose: (closer: Closer) => void,
): Promise<Omit<RunningCoordinator, 'close'>> {
  const { stateDir } = config;
  const part = (name: string): Logger => logger.child({ part: name });
  await ensurePrivateFolder(stateDir);
  const lock = await lockFolder(stateDir);
  onClose(() => lock.release());
  const store = SqliteStore.open(join(stateDir, 'registry.sqlite'));
  onClose(() => store.close());
  const keys = await openKeys({
    authorityFolder: join(stateDir, 'ca'),
    identityFolder: join(stateDir, 'identity'),
    store,
    nowMs: clock.now(),
  });
  const identity = new LiveIdentity(join(stateDir, 'identity'), keys.identity);
  const { nodeId } = keys.identity;
  const token = await openOperatorToken(join(stateDir, 'operator.token'));
  const directory = await NodeDirectory.load(store, clock);

  const office = new EnrollmentOffice({ directory, keys, clock, logger: part('enrollment') });
  const renewals = new CertificateRenewals({ directory, office, identity, clock, logger: part('certificates') });
  const placement = new PlacementService({
    directory,
    identity: keys.identity,
    renewals,
    clock,
    logger: part('placement'),
  });
  const server = createServer();
  addPlacementService(server, placement);
  const listener = await PeerListener.listen({
    identity: identity.current,
    host: config.grpcHost,
    port: config.grpcPort,
    server,
    isBarred: (peerId) => directory.get(peerId)?.state === 'revoked',
    logger: part('grpc'),
  });
  onClose(() => listener.close(GRPC_GRACE_MS));
  onClose(() => placement.close());
  identity.onRenewal((renewed) => listener.useIdentity(renewed));
  const unsubscribe = directory.subscribe(({ record, state }) => {
    if (state === 'revoked') listener.disconnectPeer(record.nodeId);
  });
  onClose(unsubscribe);

  const pauseOrders = new PauseOrders({ directory, identity, clock, logger: part('pause') });
  const api = createOperatorApi({
    host: config.httpHost,
    coordinatorId: nodeId,
    token,
    directory,
    office,
    pauseOrders,
    renewals,
    clock,
    logger: part('http'),
  });
  onClose(() => api.close(HTTP_GRACE_MS));
  // Before the API, so that whoever waits for an order gets an answer.
  onClose(() => pauseOrders.close());
  onClose(() => renewals.close());
  renewals.start();
  const { url } = await api.listen(config.httpPort);

  const watchers = new ProducerWatchers({ directory, identity, clock, logger: part('nodes') });
  onClose(() => watchers.close());
  return { nodeId, http: url, grpc: formatTarget(listener.address) };
}
