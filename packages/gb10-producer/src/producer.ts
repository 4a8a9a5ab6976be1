import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { chunkBytesOf, MuserError, verifyingKey } from '@muser/protocol';
import { ensurePrivateFolder, lockFolder, startParts, type Logger } from '@muser/service-kit';
import {
  addHandoffService,
  addNodeService,
  createServer,
  type Identity,
  LiveIdentity,
  type NodeHandlers,
  type PeerIdentity,
  PeerListener,
  type Role,
} from '@muser/transport';

import type { PrefillBackend } from './backend/backend.js';
import { openBackend, type OpenOptions } from './backend/open-backend.js';
import { type BackendDescription, ReloadableBackend } from './backend/reloadable.js';
import type { ProducerConfig } from './config.js';
import { setPaused, watchNode } from './node-status.js';
import { PauseControl } from './pause/pause-control.js';
import { PauseFile } from './pause/pause-file.js';
import { revoked, Revocations } from './revocations.js';
import { TransferService } from './transfer/transfer-service.js';

/** Streams that are still open when draining is over are broken after this. */
const LISTENER_GRACE_MS = 2_000;
/** From the end of a revoked node's transfers to that of its connections: so that it gets to know why. */
const REVOKED_GRACE_MS = 1_000;

export const identityDir = (stateDir: string): string => join(stateDir, 'identity');

export interface Producer {
  readonly nodeId: string;
  readonly address: { readonly host: string; readonly port: number };
  readonly backend: PrefillBackend;
  readonly transfers: TransferService;
  readonly control: PauseControl;
  /** Drains, then stops listening and frees the engine. Takes `drainMs` and a few seconds at most. */
  close(): Promise<void>;
}

/**
 * Starts everything in order: state folder, identity, model (unless it is paused), listener. Whatever was started is
 * stopped again when a later step fails.
 *
 * @param open makes the engine
 * @param onMilestone hears how far an engine is that takes long to start
 * @throws MuserError or ServiceError of the step that failed
 */
export async function startProducer(
  config: ProducerConfig,
  logger: Logger,
  signal: AbortSignal,
  open: typeof openBackend = openBackend,
  onMilestone: OpenOptions['onMilestone'] = () => undefined,
): Promise<Producer> {
  return startParts(async (onClose) => {
    await ensurePrivateFolder(config.stateDir);
    const lock = await lockFolder(config.stateDir);
    onClose(() => lock.release());
    const identity = await LiveIdentity.load(identityDir(config.stateDir), 'producer');
    const revocations = await Revocations.open({ path: join(config.stateDir, 'revoked.json'), logger });
    const file = new PauseFile(join(config.stateDir, 'paused.json'));
    const load = (stop: AbortSignal) => openChecked(open, { config, logger, signal: stop, onMilestone });
    const whilePaused = await file.read();
    const backend =
      whilePaused === null
        ? await ReloadableBackend.open(load, signal)
        : ReloadableBackend.unloaded(load, withConcurrency(whilePaused, config.maxConcurrent));
    onClose(() => backend.close());
    const transfers = createTransfers(config, identity.current, backend, logger);
    const control = new PauseControl({ backend, transfers, file, logger: logger.child({ component: 'pause' }) });
    const listener = await listen(config, identity, { backend, transfers, control, revocations, logger });
    onClose(() => listener.close(LISTENER_GRACE_MS));
    onClose(() => transfers.drain(config.drainMs));
    onClose(() => control.close());
    signal.throwIfAborted();
    return { nodeId: identity.current.nodeId, address: listener.address, backend, transfers, control };
  });
}

/** The queue is made before the model is loaded again, and the configuration may have been changed meanwhile. */
function withConcurrency(description: BackendDescription, maxConcurrent: number): BackendDescription {
  return { ...description, limits: { ...description.limits, maxConcurrent } };
}

async function openChecked(open: typeof openBackend, options: OpenOptions): Promise<PrefillBackend> {
  const backend = await open(options);
  try {
    checkStaging(options.config, backend);
    return backend;
  } catch (error) {
    await backend.close();
    throw error;
  }
}

/** Compute of one chunk and sending of another must fit, or a transfer would wait for itself. */
function checkStaging(config: ProducerConfig, { model, limits }: PrefillBackend): void {
  const { stagingBytes, stagingBytesPerTransfer } = config.budgets;
  const chunkBytes = chunkBytesOf(model.geometry, limits.chunkTokens);
  const smallest = Math.min(stagingBytes, stagingBytesPerTransfer);
  if (smallest >= 2 * chunkBytes) return;
  const message = `budgets: ${smallest} bytes of staging do not hold two chunks of ${chunkBytes} bytes; raise them or lower chunkTokens`;
  throw new MuserError('CONFIG_INVALID', message, { details: { chunkBytes } });
}

function createTransfers(
  config: ProducerConfig,
  identity: Identity,
  backend: PrefillBackend,
  logger: Logger,
): TransferService {
  return new TransferService({
    producerId: identity.nodeId,
    signingKey: identity.signingKey,
    coordinatorKey: verifyingKey(identity.coordinatorPublicKey),
    backend,
    queueLimit: config.queueLimit,
    stagingBytes: config.budgets.stagingBytes,
    stagingBytesPerTransfer: config.budgets.stagingBytesPerTransfer,
    sharedPrefixCache: config.vllm.sharedPrefixCache,
    logger: logger.child({ component: 'transfer' }),
  });
}

interface ServingParts {
  backend: PrefillBackend;
  transfers: TransferService;
  control: PauseControl;
  revocations: Revocations;
  logger: Logger;
}

async function listen(config: ProducerConfig, identity: LiveIdentity, parts: ServingParts): Promise<PeerListener> {
  const { revocations, transfers, logger } = parts;
  const server = createServer();
  addHandoffService(server, {
    authorize: (peer) => {
      requireRole(peer, 'decoder');
      revocations.check(peer.nodeId);
    },
    prefill: (call) => transfers.prefill(call),
  });
  addNodeService(server, nodeHandlers(identity, parts));
  const listener = await PeerListener.listen({
    identity: identity.current,
    host: config.host,
    port: config.port,
    server,
    isBarred: (nodeId) => revocations.has(nodeId),
    logger: logger.child({ component: 'listener' }),
  });
  identity.onRenewal((renewed) => listener.useIdentity(renewed));
  revocations.onRevoked = (nodeId) => {
    transfers.cancelOf(nodeId, revoked(nodeId));
    setTimeout(() => listener.disconnectPeer(nodeId), REVOKED_GRACE_MS).unref();
  };
  return listener;
}

function nodeHandlers(identity: LiveIdentity, { revocations, logger, ...serving }: ServingParts): NodeHandlers {
  const source = { nodeId: identity.current.nodeId, version: ownVersion(), ...serving };
  return {
    authorize: (peer) => requireRole(peer, 'coordinator'),
    watch: (call) => watchNode(source, call),
    setPaused: (call) => setPaused(source, call),
    setRevoked: async ({ request }) => ({ version: await revocations.take(request) }),
    requestCertificate: () => identity.request(),
    installCertificate: async ({ request }) => {
      await identity.install(request.certificate);
      logger.info({ serial: identity.serial }, 'certificate renewed');
      return { serial: identity.serial };
    },
  };
}

function requireRole(peer: PeerIdentity, role: Role): void {
  if (peer.role === role) return;
  throw new MuserError('PERMISSION_DENIED', `this call is for a ${role}; ${peer.nodeId} is a ${peer.role}`);
}

export function ownVersion(): string {
  const manifest = JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8')) as { version: string };
  return manifest.version;
}
