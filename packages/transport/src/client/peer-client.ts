import { createSecureContext, type PeerCertificate } from 'node:tls';
import { Client, credentials } from '@grpc/grpc-js';
import {
  decodeNodeStatus,
  decodeProducerList,
  encodeWatchNodeRequest,
  encodeWatchProducersRequest,
  MuserError,
  toMuserError,
  type NodeStatus,
  type ProducerList,
  type WatchNodeRequest,
  type WatchProducersRequest,
} from '@muser/protocol';
import { peerOf } from '../identity/peer.js';
import type { Identity, Role } from '../identity/types.js';
import { CLIENT_OPTIONS } from '../options.js';
import { HANDOFF_SERVICE, NODE_SERVICE, PLACEMENT_SERVICE } from '../services.js';
import { grpcTarget } from '../target.js';
import { readStream, type StreamPeer } from './stream.js';

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

/**
 * A connection to one peer, made at the first call and again when it is lost. Calls on it fail with MuserErrors; an error
 * never closes the client.
 */
export class PeerClient {
  readonly #client: Client;
  readonly #peer: StreamPeer;
  readonly #closed = new AbortController();
  #identityProblem: MuserError | null = null;

  /** @throws MuserError INVALID_REQUEST when the target is not an address; nothing is dialled yet */
  static connect(options: ConnectOptions): PeerClient {
    return new PeerClient(options);
  }

  private constructor({ identity, target, expect }: ConnectOptions) {
    const context = createSecureContext({
      key: identity.tlsKeyPem,
      cert: identity.tlsCertificatePem,
      ca: identity.caPem,
      minVersion: 'TLSv1.3',
    });
    const checkServerIdentity = (_name: string, certificate: PeerCertificate): Error | undefined => {
      this.#identityProblem = identityProblem(certificate.raw, target, expect);
      return this.#identityProblem ?? undefined;
    };
    const secure = credentials.createFromSecureContext(context, { checkServerIdentity });
    this.#client = new Client(grpcTarget(target), secure, CLIENT_OPTIONS);
    this.#peer = { client: this.#client, target, identityProblem: () => this.#identityProblem };
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

  #read(path: string, request: Buffer, { signal, ...limits }: PrefillOptions): AsyncGenerator<Buffer, void, void> {
    const signals = signal === undefined ? [this.#closed.signal] : [this.#closed.signal, signal];
    return readStream(this.#peer, { path, request, signals, ...limits });
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
