import { randomUUID } from 'node:crypto';
import { setMaxListeners } from 'node:events';

import {
  MuserError,
  PROTOCOL_VERSION,
  toMuserError,
  type CertificateRequest,
  type IssuedCertificate,
} from '@muser/protocol';
import type { Clock, Logger } from '@muser/service-kit';
import { PeerClient, type LiveIdentity, type PeerIdentity } from '@muser/transport';

import { CERTIFICATE_LIFETIME_MS } from '../ca/authority.js';
import type { EnrollmentOffice } from '../enrollment.js';
import type { NodeRecord } from '../registry/store.js';
import type { NodeDirectory } from './directory.js';
import type { NodeEntry } from './node-state.js';
import { SILENCE_LIMIT_MS } from './watchdog.js';

export interface CertificateRenewalsOptions {
  directory: NodeDirectory;
  office: EnrollmentOffice;
  /** The coordinator's own. */
  identity: LiveIdentity;
  clock: Clock;
  logger: Logger;
}

/** At two thirds of their life, which leaves ten days for a node that cannot be reached. */
const RENEW_BEFORE_END_MS = CERTIFICATE_LIFETIME_MS / 3;
const CHECK_INTERVAL_MS = 60_000;

/** An operator's order to a decoder, which asks for its certificate when it hears of it. */
interface DecoderOrder {
  id: string;
  carriedOut: AbortController;
  /** Operators that wait for it. */
  waiting: number;
}

/**
 * Renews the certificates and TLS keys of running nodes before they end, and when an operator says so. Producers are
 * dialled; decoders find the order in their list and ask. Connections that are open go on as they are.
 */
export class CertificateRenewals {
  readonly #options: CertificateRenewalsOptions;
  readonly #closing = new AbortController();
  readonly #orders = new Map<string, DecoderOrder>();
  #done = Promise.resolve();

  constructor(options: CertificateRenewalsOptions) {
    this.#options = options;
    // Every order that is under way listens.
    setMaxListeners(0, this.#closing.signal);
  }

  /** Renews by itself from now on. */
  start(): void {
    this.#done = this.#run();
  }

  async close(): Promise<void> {
    this.#closing.abort(new MuserError('UNAVAILABLE', 'the coordinator is closing'));
    await this.#done;
  }

  /**
   * Gives a node a new TLS key and certificate now. Resolves when its new connections use them (a decoder: when it has
   * got the certificate).
   *
   * @throws MuserError NOT_FOUND (unknown or revoked), PEER_UNREACHABLE, DEADLINE_EXCEEDED (a decoder that does not ask),
   *   CANCELLED (the signal), UNAVAILABLE, or why the node refused
   */
  async renew(nodeId: string, deadlineMs: number, signal: AbortSignal): Promise<NodeEntry> {
    const entry = this.#options.directory.get(nodeId);
    if (entry === undefined || entry.state === 'revoked') {
      throw new MuserError('NOT_FOUND', `there is no node ${nodeId}`);
    }
    const limit = new AbortController();
    const late = new MuserError('DEADLINE_EXCEEDED', `${entry.record.name} was not done after ${deadlineMs} ms`);
    const timer = setTimeout(() => limit.abort(late), deadlineMs);
    const either = AbortSignal.any([signal, limit.signal, this.#closing.signal]);
    try {
      if (entry.record.role === 'producer') await this.#renewProducer(entry.record, either);
      else await this.#orderDecoder(entry, either);
    } finally {
      clearTimeout(timer);
    }
    return this.#options.directory.get(nodeId) ?? entry;
  }

  /** The order that a decoder finds in its list, which it carries out once; empty when there is none. */
  orderFor({ nodeId, notAfter, serial }: PeerIdentity): string {
    const order = this.#orders.get(nodeId);
    if (order !== undefined) return order.id;
    return this.#isDue(notAfter.getTime()) ? serial : '';
  }

  /** @throws MuserError ENROLL_REFUSED when the request is not that of the node itself */
  async issueTo({ nodeId }: PeerIdentity, request: CertificateRequest): Promise<IssuedCertificate> {
    const { certificate, record } = await this.#options.office.issueAgain(nodeId, request);
    await record();
    const order = this.#orders.get(nodeId);
    this.#orders.delete(nodeId);
    order?.carriedOut.abort();
    return { protocolVersion: PROTOCOL_VERSION, certificate };
  }

  #isDue(endMs: number): boolean {
    return this.#options.clock.now() >= endMs - RENEW_BEFORE_END_MS;
  }

  async #run(): Promise<void> {
    const { clock, directory } = this.#options;
    const { signal } = this.#closing;
    while (!signal.aborted) {
      await this.#renewOwn();
      for (const { record, state } of directory.list()) {
        const isHeard = state === 'healthy' || state === 'draining' || state === 'paused';
        if (record.role !== 'producer' || !isHeard || !this.#isDue(record.certificateExpiresAtMs)) continue;
        await this.#attempt(record.nodeId, () => this.#renewProducer(record, signal));
      }
      await clock.sleep(CHECK_INTERVAL_MS, signal).catch(() => undefined);
    }
  }

  async #renewOwn(): Promise<void> {
    const { identity, office } = this.#options;
    if (!this.#isDue(identity.expiresAtMs)) return;
    await this.#attempt(identity.current.nodeId, async () => {
      const { certificate } = await office.issueAgain(identity.current.nodeId, await identity.request());
      await identity.install(certificate);
    });
  }

  /** What fails is tried again at the next check. */
  async #attempt(nodeId: string, work: () => Promise<void>): Promise<void> {
    try {
      await work();
    } catch (error) {
      const { code, message } = toMuserError(error, 'INTERNAL');
      this.#options.logger.warn({ nodeId, code, reason: message }, 'certificate not renewed');
    }
  }

  /** Tries the addresses in turn until the producer itself answers. */
  async #renewProducer({ nodeId, name, addresses }: NodeRecord, signal: AbortSignal): Promise<void> {
    let failure = new MuserError('PEER_UNREACHABLE', `${name} has no address`);
    for (const target of addresses) {
      const expect = { role: 'producer', nodeId } as const;
      const client = PeerClient.connect({ identity: this.#options.identity.current, target, expect });
      try {
        await this.#renewOver(client, nodeId, signal);
        return;
      } catch (error) {
        failure = toMuserError(error, 'INTERNAL');
        if (failure.code !== 'PEER_UNREACHABLE' && failure.code !== 'PEER_IDENTITY') break;
      } finally {
        client.close();
      }
    }
    throw failure;
  }

  async #renewOver(client: PeerClient, nodeId: string, signal: AbortSignal): Promise<void> {
    const limits = { signal, idleTimeoutMs: SILENCE_LIMIT_MS };
    const request = await client.requestCertificate({ protocolVersion: PROTOCOL_VERSION }, limits);
    const { certificate, record } = await this.#options.office.issueAgain(nodeId, request);
    await client.installCertificate({ protocolVersion: PROTOCOL_VERSION, certificate }, limits);
    // Not before: when the answer is lost, the registry has the earlier end, and it is done again.
    await record();
  }

  async #orderDecoder({ record: { nodeId, name }, state }: NodeEntry, signal: AbortSignal): Promise<void> {
    if (state !== 'healthy') throw new MuserError('PEER_UNREACHABLE', `the decoder ${name} holds no stream`);
    const order = this.#orders.get(nodeId) ?? { id: randomUUID(), carriedOut: new AbortController(), waiting: 0 };
    this.#orders.set(nodeId, order);
    order.waiting += 1;
    try {
      await untilAborted(order.carriedOut.signal, signal);
    } finally {
      order.waiting -= 1;
      // The other operators' order stands when one of them gives up.
      if (order.waiting === 0 && this.#orders.get(nodeId) === order) this.#orders.delete(nodeId);
    }
  }
}

/** Resolves when the first signal aborts, rejects with the second one's reason. */
function untilAborted(awaited: AbortSignal, ended: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    awaited.addEventListener('abort', () => resolve(), { once: true });
    const onEnd = (): void => reject(ended.reason as Error);
    ended.addEventListener('abort', onEnd, { once: true });
    if (ended.aborted) onEnd();
  });
}
