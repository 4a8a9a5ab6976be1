import { MAX_WATCH_INTERVAL_MS, MIN_WATCH_INTERVAL_MS, type NodeStatus, type WatchNodeRequest } from '@muser/protocol';

import { pause } from './abort.js';
import type { PrefillBackend } from './backend/backend.js';
import type { TransferService } from './transfer/transfer-service.js';

/** Of at most three bytes each, so that the status stays within its limit. */
const MAX_REASON_CHARACTERS = 300;

export interface StatusSource {
  readonly nodeId: string;
  readonly version: string;
  readonly backend: PrefillBackend;
  readonly transfers: TransferService;
}

/** What the coordinator is told about this producer now. */
export function nodeStatus({ nodeId, version, backend, transfers }: StatusSource): NodeStatus {
  const { queueLength, activeTransfers, prefillTokensPerSecond } = transfers.load;
  return {
    nodeId,
    state: transfers.drainBegun.aborted ? 'draining' : backend.health.state,
    model: backend.model.identity,
    geometry: backend.model.geometry,
    maxPromptTokens: backend.limits.maxPromptTokens,
    queueLength,
    activeTransfers,
    prefillTokensPerSecond,
    backend: backend.name,
    version,
    sentAtMs: Date.now(),
    reason: backend.health.state === 'ready' ? '' : backend.health.reason.slice(0, MAX_REASON_CHARACTERS),
  };
}

/** Sends the status at once, at the wanted interval, and when draining begins, until the watcher is gone. */
export async function watchNode(
  source: StatusSource,
  watcher: { request: WatchNodeRequest; signal: AbortSignal; send: (status: NodeStatus) => Promise<void> },
): Promise<void> {
  const { request, signal, send } = watcher;
  const intervalMs = Math.min(MAX_WATCH_INTERVAL_MS, Math.max(MIN_WATCH_INTERVAL_MS, request.intervalMs));
  const { drainBegun } = source.transfers;
  while (!signal.aborted) {
    await send(nodeStatus(source));
    await pause(intervalMs, signal, ...(drainBegun.aborted ? [] : [drainBegun]));
  }
}
