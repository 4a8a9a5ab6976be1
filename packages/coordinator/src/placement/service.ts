import {
  MuserError,
  type CertificateRequest,
  type IssuedCertificate,
  type ProducerList,
  type WatchProducersRequest,
} from '@muser/protocol';
import type { Clock, Logger } from '@muser/service-kit';
import type { Identity, PeerIdentity, PlacementHandlers, WatchCall } from '@muser/transport';

import type { CertificateRenewals } from '../nodes/certificate-renewals.js';
import type { NodeDirectory } from '../nodes/directory.js';
import { producerListFor } from './producer-list.js';
import { TicketBook } from './ticket-book.js';

export interface PlacementOptions {
  directory: NodeDirectory;
  /** The coordinator's; its signing key signs the tickets. */
  identity: Identity;
  renewals: CertificateRenewals;
  clock: Clock;
  logger: Logger;
}

/** Without a change the list is sent again after this time: decoders take five seconds of silence for a lost coordinator. */
const HEARTBEAT_MS = 1_500;
/** Changes that follow each other faster are sent together. */
const MIN_PUSH_GAP_MS = 50;
/** A decoder holds one stream; a few more may be left over from connections that broke without a word. */
const MAX_STREAMS_PER_DECODER = 8;

type Call = WatchCall<WatchProducersRequest, ProducerList>;

/** The Placement service: keeps every decoder's list of producers and tickets up to date, and renews its certificate. */
export class PlacementService implements PlacementHandlers {
  readonly #options: PlacementOptions;
  /** Streams of each decoder; each can be ended with a reason. */
  readonly #streams = new Map<string, Set<AbortController>>();
  readonly #unsubscribe: () => void;
  #isClosed = false;

  constructor(options: PlacementOptions) {
    this.#options = options;
    this.#unsubscribe = options.directory.subscribe(({ record: { nodeId }, state }) => {
      if (state === 'revoked') this.#end(nodeId, new MuserError('NODE_REVOKED', `the node ${nodeId} was revoked`));
    });
  }

  /** @throws MuserError PERMISSION_DENIED or NODE_REVOKED unless the peer is an enrolled decoder */
  readonly authorize = ({ nodeId, role }: PeerIdentity): void => {
    if (role !== 'decoder') throw new MuserError('PERMISSION_DENIED', `a ${role} gets no placements`);
    const state = this.#options.directory.get(nodeId)?.state;
    if (state === undefined) throw new MuserError('PERMISSION_DENIED', `the node ${nodeId} is not enrolled here`);
    if (state === 'revoked') throw new MuserError('NODE_REVOKED', `the node ${nodeId} was revoked`);
  };

  readonly watch = async (call: Call): Promise<void> => {
    const { nodeId } = call.peer;
    const stream = this.#admit(nodeId);
    const onGone = (): void => stream.abort(call.signal.reason);
    call.signal.addEventListener('abort', onGone, { once: true });
    if (call.signal.aborted) onGone();
    this.#options.logger.info({ nodeId }, 'decoder connected');
    try {
      await this.#push(call, stream.signal);
    } finally {
      call.signal.removeEventListener('abort', onGone);
      this.#dismiss(nodeId, stream);
      this.#options.logger.info({ nodeId }, 'decoder disconnected');
    }
  };

  readonly renewCertificate = (call: { peer: PeerIdentity; request: CertificateRequest }): Promise<IssuedCertificate> =>
    this.#options.renewals.issueTo(call.peer, call.request);

  close(): void {
    this.#isClosed = true;
    this.#unsubscribe();
    const reason = new MuserError('UNAVAILABLE', 'the coordinator is closing');
    for (const nodeId of [...this.#streams.keys()]) this.#end(nodeId, reason);
  }

  /** Sends the list now, after each change, and as a heartbeat; throws the signal's reason in the end. */
  async #push(call: Call, signal: AbortSignal): Promise<void> {
    const { directory, identity, renewals, clock } = this.#options;
    const { model } = call.request;
    const tickets = new TicketBook({ decoderId: call.peer.nodeId, model, key: identity.signingKey, clock });
    let pause = new AbortController();
    const wake = (): void => pause.abort();
    const unsubscribe = directory.subscribe(wake);
    signal.addEventListener('abort', wake);
    try {
      for (;;) {
        signal.throwIfAborted();
        requireCertificate(call.peer, clock.now());
        pause = new AbortController();
        const nodes = directory.list();
        const renewOrder = renewals.orderFor(call.peer);
        const { fingerprint } = model;
        await call.send(producerListFor({ nodes, fingerprint, tickets, renewOrder, nowMs: clock.now() }));
        await clock.sleep(MIN_PUSH_GAP_MS, signal);
        await clock.sleep(HEARTBEAT_MS - MIN_PUSH_GAP_MS, pause.signal).catch(() => undefined);
      }
    } finally {
      unsubscribe();
      signal.removeEventListener('abort', wake);
    }
  }

  #admit(nodeId: string): AbortController {
    if (this.#isClosed) throw new MuserError('UNAVAILABLE', 'the coordinator is closing');
    const streams = this.#streams.get(nodeId) ?? new Set();
    if (streams.size >= MAX_STREAMS_PER_DECODER) {
      throw new MuserError('RESOURCE_EXHAUSTED', `the node ${nodeId} holds ${streams.size} streams already`);
    }
    const stream = new AbortController();
    streams.add(stream);
    this.#streams.set(nodeId, streams);
    this.#options.directory.observe(nodeId, { state: 'healthy', reason: null, status: null, heard: true });
    return stream;
  }

  #dismiss(nodeId: string, stream: AbortController): void {
    const streams = this.#streams.get(nodeId);
    streams?.delete(stream);
    if (streams === undefined || streams.size > 0) return;
    this.#streams.delete(nodeId);
    const reason = { code: 'PEER_UNREACHABLE', message: 'the decoder holds no stream' } as const;
    this.#options.directory.observe(nodeId, { state: 'unreachable', reason, status: null, heard: true });
  }

  #end(nodeId: string, reason: MuserError): void {
    for (const stream of this.#streams.get(nodeId) ?? []) stream.abort(reason);
  }
}

/** A stream may outlive its certificate: the decoder opens it anew with its newest one, which is then watched over. */
function requireCertificate({ nodeId, notAfter }: PeerIdentity, nowMs: number): void {
  if (notAfter.getTime() >= nowMs) return;
  throw new MuserError('CERTIFICATE_INVALID', `the certificate with which ${nodeId} opened its stream has ended`);
}
