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
const MIN_ISSUE_GAP_MS = 60_000;

/** An operator's order to a decoder, which asks for its certificate when it hears of it. */
interface DecoderOrder {
  id: string;
  carriedOut: AbortController;
  /** Operators that wait for it. */
  waiting: number;
}

/** A renewal of a producer that is under way. */
interface ProducerRenewal {
  done: Promise<void>;
  unwanted: AbortController;
  /** Who waits for it: operators, and the check of all certificates. */
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
  /** When a decoder got its newest certificate. As many entries as there are decoders. */
  readonly #issuedAtMs = new Map<string, number>();
  readonly #underWay = new Map<string, ProducerRenewal>();
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
   * @throws MuserError NOT_FOUND (unknown or revoked), NODE_REVOKED (meanwhile), PEER_UNREACHABLE, DEADLINE_EXCEEDED (a decoder that does not ask),
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
    const unsubscribe = this.#options.directory.subscribe(({ record, state }) => {
      if (record.nodeId !== nodeId || state !== 'revoked') return;
      limit.abort(new MuserError('NODE_REVOKED', `${record.name} was revoked`));
    });
    const either = AbortSignal.any([signal, limit.signal, this.#closing.signal]);
    try {
      if (entry.record.role === 'producer') await this.#renewProducer(entry.record, either);
      else await this.#orderDecoder(entry, either);
    } finally {
      clearTimeout(timer);
      unsubscribe();
    }
    return this.#options.directory.get(nodeId) ?? entry;
  }

  /** The order that a decoder finds in its list, which it carries out once; empty when there is none. */
  orderFor({ nodeId, notAfter, serial }: PeerIdentity): string {
    const order = this.#orders.get(nodeId);
    if (order !== undefined) return order.id;
    return this.#isDue(notAfter.getTime()) ? serial : '';
  }

  /**
   * Only a node with an order gets one, and without an operator's at most one a minute: whose answer was lost asks again.
   *
   * @throws MuserError ENROLL_REFUSED when the request is not that of the node itself; PERMISSION_DENIED without an order,
   *   RESOURCE_EXHAUSTED too soon
   */
  async issueTo(peer: PeerIdentity, request: CertificateRequest): Promise<IssuedCertificate> {
    const { nodeId } = peer;
    if (!this.#orders.has(nodeId)) this.#refuseUnordered(peer);
    const { certificate, record } = await this.#options.office.issueAgain(nodeId, request);
    await record();
    this.#issuedAtMs.set(nodeId, this.#options.clock.now());
    const order = this.#orders.get(nodeId);
    this.#orders.delete(nodeId);
    order?.carriedOut.abort();
    return { protocolVersion: PROTOCOL_VERSION, certificate };
  }

  #refuseUnordered(peer: PeerIdentity): void {
    if (this.orderFor(peer) === '') {
      throw new MuserError('PERMISSION_DENIED', 'nobody has ordered a new certificate, and yours will do for a while');
    }
    const issuedAtMs = this.#issuedAtMs.get(peer.nodeId);
    if (issuedAtMs === undefined || this.#options.clock.now() - issuedAtMs >= MIN_ISSUE_GAP_MS) return;
    throw new MuserError('RESOURCE_EXHAUSTED', 'you got a new certificate less than a minute ago');
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

  /** A producer holds one new key at a time, so whoever asks meanwhile waits for the renewal that is under way. */
  async #renewProducer(record: NodeRecord, signal: AbortSignal): Promise<void> {
    const { nodeId } = record;
    const renewal = this.#underWay.get(nodeId) ?? this.#beginRenewal(record);
    this.#underWay.set(nodeId, renewal);
    renewal.waiting += 1;
    try {
      await unlessAborted(renewal.done, signal);
    } finally {
      renewal.waiting -= 1;
      if (renewal.waiting === 0) {
        renewal.unwanted.abort(new MuserError('CANCELLED', `nobody waits for the renewal of ${record.name} any more`));
        this.#underWay.delete(nodeId);
      }
    }
  }

  #beginRenewal(record: NodeRecord): ProducerRenewal {
    const unwanted = new AbortController();
    const signal = AbortSignal.any([unwanted.signal, this.#closing.signal]);
    return { done: this.#dialProducer(record, signal), unwanted, waiting: 0 };
  }

  /** Tries the addresses in turn until the producer itself answers. */
  async #dialProducer({ nodeId, name, addresses }: NodeRecord, signal: AbortSignal): Promise<void> {
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
      await unlessAborted(aborted(order.carriedOut.signal), signal);
    } finally {
      order.waiting -= 1;
      // The other operators' order stands when one of them gives up.
      if (order.waiting === 0 && this.#orders.get(nodeId) === order) this.#orders.delete(nodeId);
    }
  }
}

/** Settles as the work does, or rejects with the signal's reason before. */
function unlessAborted(work: Promise<void>, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const onEnd = (): void => reject(signal.reason as Error);
    signal.addEventListener('abort', onEnd, { once: true });
    if (signal.aborted) onEnd();
    void work.then(resolve, reject).finally(() => signal.removeEventListener('abort', onEnd));
  });
}

/** Resolves when the signal aborts. */
function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => signal.addEventListener('abort', () => resolve(), { once: true }));
}
