import {
  MAX_ERROR_MESSAGE_BYTES,
  MAX_WATCH_INTERVAL_MS,
  MIN_WATCH_INTERVAL_MS,
  MuserError,
  type NodeState,
  type NodeStatus,
  type SetPausedRequest,
  type WatchNodeRequest,
} from '@muser/protocol';

import { orAborted, orLate, pause } from './abort.js';
import type { PrefillBackend } from './backend/backend.js';
import type { PauseControl } from './pause/pause-control.js';
import type { TransferService } from './transfer/transfer-service.js';

/** Of at most four bytes each. */
const MAX_REASON_CHARACTERS = MAX_ERROR_MESSAGE_BYTES / 4;
/** So that whoever waits for an order sees that it is being carried out. */
const ORDER_INTERVAL_MS = 1_000;

export interface StatusSource {
  readonly nodeId: string;
  readonly version: string;
  readonly backend: PrefillBackend;
  readonly transfers: TransferService;
  readonly control: PauseControl;
}

interface StatusCall<Request> {
  readonly request: Request;
  readonly signal: AbortSignal;
  readonly send: (status: NodeStatus) => Promise<void>;
}

/** What the coordinator is told about this producer now. */
export function nodeStatus(source: StatusSource): NodeStatus {
  const { nodeId, version, backend, transfers } = source;
  const { queueLength, activeTransfers, prefillTokensPerSecond } = transfers.load;
  const { state, reason } = stateOf(source);
  return {
    nodeId,
    state,
    model: backend.model.identity,
    geometry: backend.model.geometry,
    maxPromptTokens: backend.limits.maxPromptTokens,
    queueLength,
    activeTransfers,
    prefillTokensPerSecond,
    backend: backend.name,
    version,
    sentAtMs: Date.now(),
    reason: [...reason].slice(0, MAX_REASON_CHARACTERS).join(''),
    unloaded: state === 'ready' && backend.health.state === 'ready' && backend.health.unloaded === true,
  };
}

function stateOf({ backend, transfers, control }: StatusSource): { state: NodeState; reason: string } {
  if (transfers.drainBegun.aborted) return { state: 'draining', reason: 'the producer is closing' };
  switch (control.state) {
    case 'pausing':
      return { state: 'draining', reason: 'the producer is being paused' };
    case 'paused':
      return { state: 'paused', reason: 'an operator has paused the producer' };
    case 'resuming':
      return { state: 'starting', reason: 'the model is being loaded again' };
    case 'failed':
      return { state: 'error', reason: control.reason };
    case 'running':
      return backend.health.state === 'ready' ? { state: 'ready', reason: '' } : backend.health;
  }
}

/** Sends the status at once, at the wanted interval, and at a change of what it is told, until the watcher is gone. */
export async function watchNode(source: StatusSource, watcher: StatusCall<WatchNodeRequest>): Promise<void> {
  const { request, signal } = watcher;
  const intervalMs = Math.min(MAX_WATCH_INTERVAL_MS, Math.max(MIN_WATCH_INTERVAL_MS, request.intervalMs));
  while (!signal.aborted) await sendUntilChange(source, watcher, intervalMs);
}

/**
 * Gives the order, and sends the status until the producer is as ordered. The order stands when the caller goes away.
 *
 * @throws MuserError DEADLINE_EXCEEDED, what the order fails with, or the call's end
 */
export async function setPaused(source: StatusSource, caller: StatusCall<SetPausedRequest>): Promise<void> {
  const { request, signal, send } = caller;
  const order = orAborted(source.control.order(request), signal);
  const settled = orLate(order, request.deadlineMs, () => lateOrder(source, request));
  const over = new AbortController();
  settled.then(
    () => over.abort(),
    () => over.abort(),
  );
  while (!over.signal.aborted) await sendUntilChange(source, caller, ORDER_INTERVAL_MS, over.signal);
  await settled;
  await send(nodeStatus(source));
}

/** Sends the status now, then waits for the interval, a change, or one of the signals. */
async function sendUntilChange(
  source: StatusSource,
  { signal, send }: StatusCall<unknown>,
  intervalMs: number,
  ...others: AbortSignal[]
): Promise<void> {
  const { changed } = source.control;
  const { drainBegun } = source.transfers;
  await send(nodeStatus(source));
  await pause(intervalMs, signal, changed, ...(drainBegun.aborted ? [] : [drainBegun]), ...others);
}

function lateOrder({ transfers }: StatusSource, { paused, deadlineMs }: SetPausedRequest): MuserError {
  const running = transfers.load.activeTransfers;
  const message = paused
    ? `the producer takes nothing new, but is not paused after ${deadlineMs} ms: ${running} transfers still run`
    : `the model is still being loaded after ${deadlineMs} ms`;
  return new MuserError('DEADLINE_EXCEEDED', message, { details: { deadlineMs, activeTransfers: running } });
}
