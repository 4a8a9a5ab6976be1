import { createSecureContext, type PeerCertificate } from 'node:tls';
import { Client, credentials, type ChannelCredentials } from '@grpc/grpc-js';
import {
  decodeCertificateInstalled,
  decodeCertificateRequest,
  decodeIssuedCertificate,
  decodeNodeStatus,
  decodeProducerList,
  decodeRevokedNodesTaken,
  encodeCertificateOrder,
  encodeCertificateRequest,
  encodeIssuedCertificate,
  encodeRevokedNodes,
  encodeSetPausedRequest,
  encodeWatchNodeRequest,
  encodeWatchProducersRequest,
  MuserError,
  toMuserError,
  type CertificateInstalled,
  type CertificateOrder,
  type CertificateRequest,
  type IssuedCertificate,
  type NodeStatus,
  type ProducerList,
  type RevokedNodes,
  type RevokedNodesTaken,
  type SetPausedRequest,
  type WatchNodeRequest,
  type WatchProducersRequest,
} from '@muser/protocol';
import { MAX_PEER_RECEIVED_BYTES_WAITING, MAX_PROCESS_RECEIVED_BYTES_WAITING } from '../limits.js';
import { prepareMemory } from '../memory.js';
import { peerOf } from '../identity/peer.js';
import type { Identity, Role } from '../identity/types.js';
import { CLIENT_OPTIONS } from '../options.js';
import { PeerBudgets } from '../peer-budgets.js';
import { HANDOFF_SERVICE, NODE_SERVICE, PLACEMENT_SERVICE } from '../services.js';
import { grpcTarget } from '../target.js';
import { readStream } from './stream.js';

export interface ConnectOptions {
  identity: Identity;
  /** "host:port"; IPv6 in brackets. */
  target: string;
  /** Who must answer there. Without a node id any node of the role will do. */
  expect: { role: Role; nodeId?: string };
}

export interface PrefillOptions {
  signal?: AbortSignal;
  /** From now to the end of the stream; the server is told. */
  deadlineMs?: number;
  /** The longest wait for one frame while the reader is waiting. */
  idleTimeoutMs?: number;
}

export interface WatchOptions {
  signal?: AbortSignal;
  idleTimeoutMs?: number;
}

/** Of all clients of this process. */
const RECEIVED = new PeerBudgets({
  processBytes: MAX_PROCESS_RECEIVED_BYTES_WAITING,
  peerBytes: MAX_PEER_RECEIVED_BYTES_WAITING,
});

/**
 * A connection to one peer, made at the first call and again when it is lost. Calls on it fail with MuserErrors; an error
 * never closes the client.
 */
export class PeerClient {
  readonly #target: string;
  /** What RECEIVED knows the peer by. */
  readonly #peer: string;
  readonly #credentials: ChannelCredentials;
  readonly #closed = new AbortController();
  #client: Client;
  /** Of the newest handshake. */
  #identity: MuserError | 'approved' | 'unseen' = 'unseen';

  /** @throws MuserError INVALID_REQUEST when the target is not an address; nothing is dialled yet */
  static connect(options: ConnectOptions): PeerClient {
    return new PeerClient(options);
  }

  private constructor({ identity, target, expect }: ConnectOptions) {
    prepareMemory();
    this.#target = target;
    this.#peer = expect.nodeId ?? target;
    const context = createSecureContext({
      key: identity.tlsKeyPem,
      cert: identity.tlsCertificatePem,
      ca: identity.caPem,
      minVersion: 'TLSv1.3',
    });
    const checkServerIdentity = (_name: string, certificate: PeerCertificate): Error | undefined => {
      const problem = identityProblem(certificate.raw, target, expect);
      this.#identity = problem ?? 'approved';
      return problem ?? undefined;
    };
    this.#credentials = credentials.createFromSecureContext(context, { checkServerIdentity });
    this.#client = this.#dial();
  }

  /**
   * Asks for a transfer. Each Buffer is one encoded PrefillFrame, for TransferReceiver. A reader that takes its time slows the
   * sender; leaving the loop cancels the transfer on both sides.
   */
  prefill(requestBytes: Buffer, options: PrefillOptions = {}): AsyncIterable<Buffer> {
    return this.#read(HANDOFF_SERVICE.Prefill.path, requestBytes, options);
  }

  async *watchNode(request: WatchNodeRequest, options: WatchOptions = {}): AsyncGenerator<NodeStatus, void, void> {
    const encoded = encodeWatchNodeRequest(request);
    for await (const message of this.#read(NODE_SERVICE.Watch.path, encoded, options)) {
      yield decodeNodeStatus(message);
    }
  }

  /** Yields the producer's status until it is as asked. Leaving the loop ends the wait, not the order. */
  async *setPaused(request: SetPausedRequest, options: WatchOptions = {}): AsyncGenerator<NodeStatus, void, void> {
    const encoded = encodeSetPausedRequest(request);
    for await (const message of this.#read(NODE_SERVICE.SetPaused.path, encoded, options)) {
      yield decodeNodeStatus(message);
    }
  }

  /** Resolves when the producer has taken the list: it refuses these nodes and cancels what they run. */
  async setRevoked(nodes: RevokedNodes, options: WatchOptions = {}): Promise<RevokedNodesTaken> {
    const path = NODE_SERVICE.SetRevoked.path;
    return decodeRevokedNodesTaken(await this.#ask(path, encodeRevokedNodes(nodes), options));
  }

  /** The producer makes a new TLS key and asks for its certificate. */
  async requestCertificate(order: CertificateOrder, options: WatchOptions = {}): Promise<CertificateRequest> {
    const path = NODE_SERVICE.RequestCertificate.path;
    return decodeCertificateRequest(await this.#ask(path, encodeCertificateOrder(order), options));
  }

  /** Resolves when the producer's new connections get the certificate. */
  async installCertificate(issued: IssuedCertificate, options: WatchOptions = {}): Promise<CertificateInstalled> {
    const path = NODE_SERVICE.InstallCertificate.path;
    return decodeCertificateInstalled(await this.#ask(path, encodeIssuedCertificate(issued), options));
  }

  /** A new certificate from the coordinator, for this node's new TLS key. */
  async renewCertificate(request: CertificateRequest, options: WatchOptions = {}): Promise<IssuedCertificate> {
    const path = PLACEMENT_SERVICE.RenewCertificate.path;
    return decodeIssuedCertificate(await this.#ask(path, encodeCertificateRequest(request), options));
  }

  async *watchProducers(
    request: WatchProducersRequest,
    options: WatchOptions = {},
  ): AsyncGenerator<ProducerList, void, void> {
    const encoded = encodeWatchProducersRequest(request);
    for await (const message of this.#read(PLACEMENT_SERVICE.WatchProducers.path, encoded, options)) {
      yield decodeProducerList(message);
    }
  }

  /** Cancels what runs and closes the connection. */
  close(): void {
    this.#closed.abort(new MuserError('CANCELLED', 'the client was closed'));
    this.#client.close();
  }

  /** For calls with one answer. */
  async #ask(path: string, request: Buffer, options: WatchOptions): Promise<Buffer> {
    for await (const message of this.#read(path, request, options)) return message;
    throw new MuserError('MESSAGE_INVALID', `${this.#target} ended the call without an answer`);
  }

  async *#read(path: string, request: Buffer, options: PrefillOptions): AsyncGenerator<Buffer, void, void> {
    const { signal, ...limits } = options;
    const signals = signal === undefined ? [this.#closed.signal] : [this.#closed.signal, signal];
    const client = this.#client;
    const peer = {
      client,
      target: this.#target,
      identity: () => this.#identity,
      received: RECEIVED.of(this.#peer),
    };
    try {
      yield* readStream(peer, { path, request, signals, ...limits });
    } catch (error) {
      if (error instanceof MuserError && error.code === 'STALLED') this.#replace(client);
      throw error;
    }
  }

  #dial(): Client {
    return new Client(grpcTarget(this.#target), this.#credentials, CLIENT_OPTIONS);
  }

  /** The link may be dead although nobody says so: the next call makes a new connection, others may finish on the old one. */
  #replace(stalled: Client): void {
    if (this.#client !== stalled || this.#closed.signal.aborted) return;
    this.#client = this.#dial();
    stalled.close();
  }
}

function identityProblem(der: Uint8Array, target: string, expect: ConnectOptions['expect']): MuserError | null {
  const details = { target };
  try {
    const { role, nodeId } = peerOf(der);
    if (role === expect.role && (expect.nodeId === undefined || nodeId === expect.nodeId)) return null;
    const wanted = `${expect.role} ${expect.nodeId ?? '(any)'}`;
    return new MuserError('PEER_IDENTITY', `${target} is ${role} ${nodeId}, not ${wanted}`, { details });
  } catch (error) {
    const { message } = toMuserError(error, 'CERTIFICATE_INVALID');
    return new MuserError('PEER_IDENTITY', `${target}: ${message}`, { cause: error, details });
  }
}
