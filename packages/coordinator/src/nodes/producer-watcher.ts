import {
  MAX_CLOCK_SKEW_MS,
  MuserError,
  PROTOCOL_VERSION,
  toMuserError,
  type ErrorCode,
  type NodeStatus,
} from '@muser/protocol';
import type { Clock, Logger } from '@muser/service-kit';
import { PeerClient, type LiveIdentity } from '@muser/transport';

import type { NodeDirectory } from './directory.js';
import type { Observation } from './node-state.js';
import { keepToldOfRevoked } from './revoked-list.js';
import { SILENCE_LIMIT_MS, Watchdog } from './watchdog.js';

export interface ProducerWatcherOptions {
  nodeId: string;
  addresses: readonly string[];
  /** Says which nodes are revoked, which every producer is told. */
  directory: NodeDirectory;
  /** The coordinator's own. */
  identity: LiveIdentity;
  clock: Clock;
  logger: Logger;
  observe(observation: Observation): void;
}

/** How often a producer is asked to send its status when nothing changes. */
const STATUS_INTERVAL_MS = 1_000;
/** From the dialling of an address to the first status. */
export const FIRST_STATUS_LIMIT_MS = 3_000;
/** Statuses that come faster wait in the stream, so that a node cannot keep the coordinator busy. */
const MIN_STATUS_GAP_MS = 50;
/** Wait after a round in which no address answered: doubled each time, so that a node is back within 5 s of its return. */
const MIN_BACKOFF_MS = 250;
const MAX_BACKOFF_MS = 1_500;

/** Failures that do not go away by themselves: something else answers, or it cannot be spoken to. */
const LASTING: ReadonlySet<ErrorCode> = new Set<ErrorCode>([
  'CERTIFICATE_INVALID',
  'CLOCK_SKEW',
  'MESSAGE_INVALID',
  'MESSAGE_TOO_LARGE',
  'PEER_IDENTITY',
  'PERMISSION_DENIED',
  'PROTOCOL_VERSION',
  'UNAUTHENTICATED',
]);

/**
 * Holds a Node.Watch stream to one producer, for as long as it is not stopped: tries the addresses in turn, the one that
 * worked last first, and reports what it sees.
 */
export class ProducerWatcher {
  readonly #options: ProducerWatcherOptions;
  readonly #done: Promise<void>;
  #addresses: readonly string[];
  /** Ended by a change of the addresses and by stop. */
  #round = new AbortController();
  #stopped = false;

  constructor(options: ProducerWatcherOptions) {
    this.#options = options;
    this.#addresses = options.addresses;
    // Not at once: whoever creates a watcher has to know it before it reports.
    this.#done = Promise.resolve().then(() => this.#run());
  }

  /** Dials anew when the addresses are other ones than before. */
  setAddresses(addresses: readonly string[]): void {
    const before = [...this.#addresses].sort().join(' ');
    if ([...addresses].sort().join(' ') === before) return;
    this.#addresses = addresses;
    this.#round.abort();
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    this.#round.abort();
    await this.#done;
  }

  async #run(): Promise<void> {
    let backoffMs = MIN_BACKOFF_MS;
    while (!this.#stopped) {
      this.#round = new AbortController();
      const { signal } = this.#round;
      const wasHeard = await this.#watchRound(signal);
      if (signal.aborted || wasHeard) backoffMs = MIN_BACKOFF_MS;
      await this.#options.clock.sleep(backoffMs, signal).catch(() => undefined);
      backoffMs = Math.min(2 * backoffMs, MAX_BACKOFF_MS);
    }
  }

  /** Watches at the first address that answers, until the stream ends. @returns whether one answered */
  async #watchRound(signal: AbortSignal): Promise<boolean> {
    if (this.#addresses.length === 0) {
      this.#options.observe({ state: 'enrolled', reason: null, status: null, heard: false });
      await new Promise((resolve) => signal.addEventListener('abort', resolve, { once: true }));
      return false;
    }
    const failures: MuserError[] = [];
    for (const address of this.#addresses) {
      const { wasHeard, error } = await this.#watch(address, signal);
      if (signal.aborted) return wasHeard;
      this.#options.logger.debug({ nodeId: this.#options.nodeId, address, code: error.code }, 'producer lost');
      if (wasHeard) {
        this.#addresses = [address, ...this.#addresses.filter((other) => other !== address)];
        // A connection that broke says nothing of the node: transfers on others may go on. The next round finds out.
        if (error.code !== 'PEER_UNREACHABLE') this.#reportFailure(error);
        return true;
      }
      failures.push(error);
    }
    const lasting = failures.find(({ code }) => LASTING.has(code));
    const reported = lasting ?? failures[0];
    if (reported !== undefined) this.#reportFailure(reported);
    return false;
  }

  /** Never rejects: the end of a stream is what it is for. */
  async #watch(address: string, signal: AbortSignal): Promise<{ wasHeard: boolean; error: MuserError }> {
    const { nodeId, directory, identity, clock } = this.#options;
    const call = new AbortController();
    const onAbort = (): void => call.abort(signal.reason);
    signal.addEventListener('abort', onAbort, { once: true });
    const watchdog = new Watchdog(clock, (limitMs) =>
      call.abort(new MuserError('STALLED', `${address} was silent for ${limitMs} ms`)),
    );
    let client: PeerClient | undefined;
    let wasHeard = false;
    try {
      const connected = PeerClient.connect({
        identity: identity.current,
        target: address,
        expect: { role: 'producer', nodeId },
      });
      client = connected;
      const tell = (): void => {
        const told = keepToldOfRevoked({ client: connected, directory, clock, signal: call.signal });
        // A producer that cannot be told is one that cannot be watched.
        told.catch((error: unknown) => call.abort(error));
      };
      watchdog.expectWithin(FIRST_STATUS_LIMIT_MS);
      const request = { protocolVersion: PROTOCOL_VERSION, intervalMs: STATUS_INTERVAL_MS };
      for await (const status of client.watchNode(request, { signal: call.signal })) {
        this.#hear(status, address);
        if (!wasHeard) tell();
        wasHeard = true;
        watchdog.expectWithin(SILENCE_LIMIT_MS);
        await clock.sleep(MIN_STATUS_GAP_MS, call.signal);
      }
      throw new MuserError('PEER_UNREACHABLE', `${address} ended the stream`);
    } catch (error) {
      return { wasHeard, error: toMuserError(error, 'INTERNAL') };
    } finally {
      watchdog.stop();
      call.abort(new MuserError('CANCELLED', 'the watch has ended'));
      signal.removeEventListener('abort', onAbort);
      client?.close();
    }
  }

  #hear(status: NodeStatus, address: string): void {
    const { nodeId } = this.#options;
    const observe = (observation: Observation): void => this.#options.observe(observation);
    if (status.nodeId !== nodeId) {
      throw new MuserError('PEER_IDENTITY', `${address} reports the state of ${status.nodeId}, not of ${nodeId}`);
    }
    this.#checkClock(status, address);
    const seen = { status, heard: true };
    switch (status.state) {
      case 'starting':
        return observe({ ...seen, state: 'enrolled', reason: null });
      case 'ready':
        return observe({ ...seen, state: 'healthy', reason: null });
      case 'draining':
        return observe({ ...seen, state: 'draining', reason: null });
      case 'paused':
        return observe({ ...seen, state: 'paused', reason: null });
      case 'error': {
        const message = status.reason === '' ? 'the node reports an error: see its log' : status.reason;
        const reason = { code: 'UNAVAILABLE', message } as const;
        return observe({ ...seen, state: 'error', reason });
      }
    }
  }

  /** Beyond what tickets and certificates forgive, every transfer would fail, each with another message. */
  #checkClock({ sentAtMs }: NodeStatus, address: string): void {
    const aheadMs = sentAtMs - this.#options.clock.now();
    if (Math.abs(aheadMs) <= MAX_CLOCK_SKEW_MS) return;
    const direction = aheadMs > 0 ? 'ahead of' : 'behind';
    const seconds = Math.ceil(Math.abs(aheadMs) / 1_000);
    const allowed = MAX_CLOCK_SKEW_MS / 1_000;
    const message = `the clock at ${address} is ${seconds} s ${direction} the coordinator's, ${allowed} s are allowed: set it by NTP`;
    throw new MuserError('CLOCK_SKEW', message, { details: { aheadMs, limit: MAX_CLOCK_SKEW_MS } });
  }

  #reportFailure({ code, message }: MuserError): void {
    const state = LASTING.has(code) ? 'error' : 'unreachable';
    this.#options.observe({ state, reason: { code, message }, status: null, heard: false });
  }
}
