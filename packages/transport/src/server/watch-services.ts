import type { Server, ServerWritableStream } from '@grpc/grpc-js';
import {
  decodeCertificateOrder,
  decodeCertificateRequest,
  decodeIssuedCertificate,
  decodeRevokedNodes,
  decodeSetPausedRequest,
  decodeWatchNodeRequest,
  decodeWatchProducersRequest,
  encodeCertificateInstalled,
  encodeCertificateRequest,
  encodeIssuedCertificate,
  encodeNodeStatus,
  encodeProducerList,
  encodeRevokedNodesTaken,
  MAX_MESSAGE_BYTES,
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
import type { PeerIdentity } from '../identity/types.js';
import { NODE_SERVICE, PLACEMENT_SERVICE } from '../services.js';
import { sentBytesOf } from './sent-bytes.js';
import { connectionsOf } from './server.js';
import { runStreamCall, type Authorize } from './stream-call.js';

export interface WatchCall<Request, Update> {
  peer: PeerIdentity;
  request: Request;
  /** Aborted with a MuserError when the watcher is gone. */
  signal: AbortSignal;
  /** Resolves when the next update may follow; a slow watcher makes it wait, so send the newest state, not every change. */
  send(update: Update): Promise<void>;
}

export interface WatchHandlers<Request, Update> {
  authorize: Authorize;
  /** Settling ends the call. */
  watch: (call: WatchCall<Request, Update>) => Promise<void>;
}

/** Answers a call that has one answer; throws a MuserError to refuse it. */
export type Answer<Request, Reply> = (call: { peer: PeerIdentity; request: Request }) => Promise<Reply>;

export interface NodeHandlers extends WatchHandlers<WatchNodeRequest, NodeStatus> {
  /** Settling ends the call: it is as asked, or a MuserError says why not. */
  setPaused: (call: WatchCall<SetPausedRequest, NodeStatus>) => Promise<void>;
  setRevoked: Answer<RevokedNodes, RevokedNodesTaken>;
  requestCertificate: Answer<CertificateOrder, CertificateRequest>;
  installCertificate: Answer<IssuedCertificate, CertificateInstalled>;
}

export interface PlacementHandlers extends WatchHandlers<WatchProducersRequest, ProducerList> {
  renewCertificate: Answer<CertificateRequest, IssuedCertificate>;
}

/** Adds muser.v1.Node (a producer's state and load, and what its coordinator tells it) to a server. */
export function addNodeService(server: Server, handlers: NodeHandlers): void {
  const { authorize, watch, setPaused, setRevoked, requestCertificate, installCertificate } = handlers;
  const encode = encodeNodeStatus;
  server.addService(NODE_SERVICE, {
    Watch: watchMethod(server, { authorize, watch }, { decode: decodeWatchNodeRequest, encode }),
    SetPaused: watchMethod(server, { authorize, watch: setPaused }, { decode: decodeSetPausedRequest, encode }),
    SetRevoked: watchMethod(server, answering(authorize, setRevoked), {
      decode: decodeRevokedNodes,
      encode: encodeRevokedNodesTaken,
    }),
    RequestCertificate: watchMethod(server, answering(authorize, requestCertificate), {
      decode: decodeCertificateOrder,
      encode: encodeCertificateRequest,
    }),
    InstallCertificate: watchMethod(server, answering(authorize, installCertificate), {
      decode: decodeIssuedCertificate,
      encode: encodeCertificateInstalled,
    }),
  });
}

/** Adds muser.v1.Placement (the coordinator's list of producers) to a server. */
export function addPlacementService(server: Server, handlers: PlacementHandlers): void {
  const { authorize, renewCertificate } = handlers;
  server.addService(PLACEMENT_SERVICE, {
    WatchProducers: watchMethod(server, handlers, { decode: decodeWatchProducersRequest, encode: encodeProducerList }),
    RenewCertificate: watchMethod(server, answering(authorize, renewCertificate), {
      decode: decodeCertificateRequest,
      encode: encodeIssuedCertificate,
    }),
  });
}

function answering<Request, Reply>(
  authorize: Authorize,
  answer: Answer<Request, Reply>,
): WatchHandlers<Request, Reply> {
  return { authorize, watch: async (call) => call.send(await answer(call)) };
}

function watchMethod<Request, Update>(
  server: Server,
  { authorize, watch }: WatchHandlers<Request, Update>,
  codec: { decode: (bytes: Buffer) => Request; encode: (update: Update) => Buffer },
): (call: ServerWritableStream<Buffer, Buffer>) => void {
  const connections = connectionsOf(server);
  const budgets = sentBytesOf(server);
  return (call) => {
    void runStreamCall(call, {
      connections,
      authorize,
      budgetOf: (peer) => ({ parent: budgets.of(peer.nodeId), limitBytes: MAX_MESSAGE_BYTES }),
      handle: ({ peer, requestBytes, signal, sender }) =>
        watch({
          peer,
          request: codec.decode(requestBytes),
          signal,
          send: (update) => sender.send(codec.encode(update)),
        }),
    });
  };
}
