import { join } from 'node:path';
import { checkModelFile, requireAddon } from '@muser/metal';
import {
  ensurePrivateFolder,
  fileDigest,
  lockFolder,
  startParts,
  type Closer,
  type Logger,
  type RunningService,
} from '@muser/service-kit';
import { LiveIdentity } from '@muser/transport';
import { ActiveRequests } from './api/active-requests.js';
import { createApi } from './api/server.js';
import { ChatTemplate } from './chat/template.js';
import type { DecoderConfig } from './config.js';
import { logEngine } from './engine/addon.js';
import { DecoderEngine } from './engine/decoder-engine.js';
import { measureLocalPrefill } from './engine/warm-up.js';
import { engineCall } from './errors/engine-errors.js';
import { MeasuredRates } from './placement/rates.js';
import { ProducerConnections } from './producers/connections.js';
import { ProducerDirectory } from './producers/directory.js';
import { CertificateRenewal } from './producers/renewal.js';
import { CoordinatorWatch } from './producers/watch.js';
import { KvSamples } from './requests/kv-samples.js';
import { RequestRunner } from './requests/runner.js';

/** How long answers that were written may take to leave when the server closes. */
const CLOSE_GRACE_MS = 1_000;

export interface RunningDecoder extends RunningService {
  /** For the ready line. */
  readonly ready: { http: string; nodeId: string | null; model: string };
}

interface Remote {
  readonly connections: ProducerConnections;
  readonly watch: CoordinatorWatch;
  readonly renewal: CertificateRenewal;
}

/** Starts everything in the order in which it depends on each other, and takes it down the other way round. */
export function startDecoder(config: DecoderConfig, logger: Logger, signal: AbortSignal): Promise<RunningDecoder> {
  return startParts(async (onClose) => ({ ready: await start(config, logger, signal, onClose) }));
}

async function start(
  config: DecoderConfig,
  logger: Logger,
  signal: AbortSignal,
  onClose: (closer: Closer) => void,
): Promise<RunningDecoder['ready']> {
  await ensurePrivateFolder(config.stateDir);
  const lock = await lockFolder(config.stateDir);
  onClose(() => lock.release());
  const identity =
    config.coordinator === null ? null : await LiveIdentity.load(join(config.stateDir, 'identity'), 'decoder');

  await engineCall(requireAddon);
  // Before gigabytes are hashed: a file that was cut off is of no use.
  await engineCall(() => checkModelFile(config.model));
  const modelDigest = await fileDigest(config.model, config.stateDir, signal);
  logEngine(logger.child({ part: 'llama.cpp' }));
  const engine = await DecoderEngine.start({ ...config, modelDigest }, signal);
  onClose(() => engine.close());
  const { localOnly } = engine.model.info;
  if (localOnly !== null) logger.warn({ reason: localOnly }, 'this model is never prefilled remotely');
  const template = new ChatTemplate(engine.model.info.chatTemplate, templateTexts(engine));
  const rates = new MeasuredRates();
  await measureLocalPrefill(engine, rates, signal);

  const directory = new ProducerDirectory();
  const remote = followCoordinator(config, identity, engine, directory, logger);
  onClose(async () => {
    await remote?.watch.close();
    await remote?.renewal.close();
    remote?.connections.close();
  });

  const { transferDeadlineMs, stallTimeoutMs, prefill, answerTokens, host } = config;
  const connections = remote?.connections ?? null;
  const samples = new KvSamples({ share: config.checkedTransfers, logger });
  const runner = new RequestRunner({
    engine,
    directory,
    connections,
    rates,
    samples,
    transferDeadlineMs,
    stallTimeoutMs,
    logger,
  });
  const active = new ActiveRequests();
  const api = createApi({
    engine,
    template,
    prefill,
    answerTokens,
    runner,
    active,
    host,
    directory,
    samples,
    coordinatorState: () => remote?.watch.state ?? 'absent',
    logger,
  });
  onClose(async () => {
    await active.drain(config.drainMs);
    await api.close(CLOSE_GRACE_MS);
  });
  const { url } = await api.listen(config.port);
  return { http: url, nodeId: identity?.current.nodeId ?? null, model: engine.identity.name };
}

function followCoordinator(
  config: DecoderConfig,
  identity: LiveIdentity | null,
  engine: DecoderEngine,
  directory: ProducerDirectory,
  logger: Logger,
): Remote | null {
  if (config.coordinator === null || identity === null) return null;
  const connections = new ProducerConnections(identity);
  const renewal = new CertificateRenewal({ identity, target: config.coordinator, logger });
  const watch = new CoordinatorWatch({
    identity,
    target: config.coordinator,
    model: engine.identity,
    name: 'decoder',
    logger,
    onList: (list) => {
      directory.update(list);
      renewal.follow(list.renewOrder);
      connections.keepEnrolled(list);
    },
  });
  return { connections, watch, renewal };
}

function templateTexts(engine: DecoderEngine): { bosText: string; eosText: string } {
  const { info } = engine.model;
  const eosText = info.eosToken === null ? '' : Buffer.from(engine.model.pieceBytes(info.eosToken)).toString('utf8');
  return { bosText: info.bosText, eosText };
}
