import { setMaxListeners } from 'node:events';

import { MuserError, PROTOCOL_VERSION, toMuserError } from '@muser/protocol';
import type { Clock, Logger } from '@muser/service-kit';
import { PeerClient, type LiveIdentity } from '@muser/transport';

import type { NodeRecord } from '../registry/store.js';
import type { NodeDirectory } from './directory.js';
import type { NodeEntry } from './node-state.js';
import { SILENCE_LIMIT_MS } from './watchdog.js';

export interface PauseOrder {
  paused: boolean;
  /** When pausing: ends the transfers that run instead of finishing them. */
  cancelRunning: boolean;
  /** How long to wait until it is done; the order stands. */
  deadlineMs: number;
}

export interface PauseOrdersOptions {
  directory: NodeDirectory;
  /** The coordinator's own. */
  identity: LiveIdentity;
  clock: Clock;
  logger: Logger;
}

/** The watcher hears of the new state by another stream, a moment before or after the order is answered. */
const STATE_LIMIT_MS = 2_000;

/**
 * Pauses and resumes producers. Whether one is paused is the producer's own state, on its own disk: nothing here can
 * come to differ from it, and orders to a producer that cannot be reached fail.
 */
export class PauseOrders {
  readonly #options: PauseOrdersOptions;
  readonly #closing = new AbortController();

  constructor(options: PauseOrdersOptions) {
    this.#options = options;
    // Every order that is under way listens.
    setMaxListeners(0, this.#closing.signal);
  }

  /**
   * Resolves when the producer is as ordered; a pause has freed its memory then, a resume has its engine ready. The order
   * stands when `signal` ends the wait.
   *
   * @throws MuserError NOT_FOUND (unknown or revoked), INVALID_REQUEST (no producer), PEER_UNREACHABLE, PEER_IDENTITY,
   *   STALLED, DEADLINE_EXCEEDED, CANCELLED (the signal, or a newer order), UNAVAILABLE, or why the engine did not start
   */
  async give(nodeId: string, order: PauseOrder, signal: AbortSignal): Promise<NodeEntry> {
    const { directory, logger } = this.#options;
    const record = this.#producer(nodeId);
    await directory.note(nodeId, order.paused ? 'node-paused' : 'node-resumed');
    logger.info({ nodeId, paused: order.paused, cancelRunning: order.cancelRunning }, 'order given');
    await this.#send(record, order, [signal, this.#closing.signal]);
    await this.#untilState(nodeId, order.paused ? 'paused' : 'healthy');
    return directory.get(nodeId) ?? notFound(nodeId);
  }

  /** Ends the waits; the orders stand. */
  close(): void {
    this.#closing.abort(new MuserError('UNAVAILABLE', 'the coordinator is closing; the order stands'));
  }

  #producer(nodeId: string): NodeRecord {
    const { record } = this.#options.directory.get(nodeId) ?? notFound(nodeId);
    if (record.role === 'producer') return record;
    throw new MuserError('INVALID_REQUEST', `${record.name} is a ${record.role}; only producers can be paused`);
  }

  /** Tries the addresses in turn until the producer itself answers. */
  async #send({ nodeId, name, addresses }: NodeRecord, order: PauseOrder, signals: AbortSignal[]): Promise<void> {
    let failure = new MuserError('PEER_UNREACHABLE', `${name} has no address`);
    const signal = AbortSignal.any(signals);
    for (const target of addresses) {
      const expect = { role: 'producer', nodeId } as const;
      const client = PeerClient.connect({ identity: this.#options.identity.current, target, expect });
      let wasHeard = false;
      try {
        const request = { protocolVersion: PROTOCOL_VERSION, ...order };
        const limits = { signal, idleTimeoutMs: SILENCE_LIMIT_MS };
        for await (const status of client.setPaused(request, limits)) wasHeard = status.nodeId === nodeId;
        return;
      } catch (error) {
        failure = toMuserError(error, 'INTERNAL');
        if (wasHeard || signal.aborted) break;
      } finally {
        client.close();
      }
    }
    throw failure;
  }

  /** So that whoever asks next sees what was just answered. */
  async #untilState(nodeId: string, wanted: NodeEntry['state']): Promise<void> {
    const { directory, clock } = this.#options;
    const seen = new AbortController();
    const unsubscribe = directory.subscribe(({ record, state }) => {
      if (record.nodeId === nodeId && state === wanted) seen.abort();
    });
    try {
      if (directory.get(nodeId)?.state === wanted) return;
      await clock.sleep(STATE_LIMIT_MS, seen.signal).catch(() => undefined);
    } finally {
      unsubscribe();
    }
  }
}

function notFound(nodeId: string): never {
  throw new MuserError('NOT_FOUND', `there is no node ${nodeId}`);
}
