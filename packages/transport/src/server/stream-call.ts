import type { ServerWritableStream } from '@grpc/grpc-js';
import { MuserError } from '@muser/protocol';
import { ByteBudget } from '../budget.js';
import { peerOf } from '../identity/peer.js';
import type { PeerIdentity } from '../identity/types.js';
import { SEND_STALL_TIMEOUT_MS } from '../limits.js';
import { toStatus } from '../translation.js';
import type { ConnectionTable } from './connections.js';
import { FrameSender } from './frame-sender.js';

/** Called once per call with the verified peer; throws a MuserError to refuse it. */
export type Authorize = (peer: PeerIdentity) => void;

type Call = ServerWritableStream<Buffer, Buffer>;

export interface StreamContext {
  peer: PeerIdentity;
  requestBytes: Buffer;
  /** Aborted with a MuserError: CANCELLED (client gone or cancelled) or DEADLINE_EXCEEDED. */
  signal: AbortSignal;
  sender: FrameSender;
}

export interface StreamOptions {
  connections: ConnectionTable;
  authorize: Authorize;
  /** The budget that this call's leaf hangs under, and the leaf's own limit. */
  budgetOf: (peer: PeerIdentity) => { parent: ByteBudget; limitBytes: number };
  handle: (context: StreamContext) => Promise<void>;
}

/** Runs one server-streaming call from the peer's check to the last byte; never rejects. */
export async function runStreamCall(call: Call, options: StreamOptions): Promise<void> {
  const abort = new AbortController();
  const onCancelled = () => abort.abort(endReason(call));
  call.once('cancelled', onCancelled);
  let sender: FrameSender | null = null;
  try {
    const peer = authenticatedPeer(call);
    options.authorize(peer);
    const { parent, limitBytes } = options.budgetOf(peer);
    sender = new FrameSender(call, new ByteBudget(limitBytes, parent), abort.signal);
    await options.handle({ peer, requestBytes: call.request, signal: abort.signal, sender });
    call.end();
  } catch (error) {
    // grpc-js sends this as the status, after the frames that are queued already.
    call.emit('error', toStatus(error));
  }
  call.off('cancelled', onCancelled);
  await ended(call, options.connections);
  sender?.dispose();
}

/**
 * @throws MuserError UNAUTHENTICATED, CERTIFICATE_INVALID (also when it expired while the connection was open)
 */
function authenticatedPeer(call: Call): PeerIdentity {
  const certificate = call.getAuthContext().sslPeerCertificate;
  if (certificate === undefined) throw new MuserError('UNAUTHENTICATED', 'the connection has no client certificate');
  const peer = peerOf(certificate.raw);
  if (peer.notAfter.getTime() < Date.now()) {
    throw new MuserError('CERTIFICATE_INVALID', `the certificate of ${peer.nodeId} has expired; enroll the node again`);
  }
  return peer;
}

/** grpc-js tells of a passed deadline, a cancel and a lost connection by the same event. */
function endReason(call: Call): MuserError {
  return Number(call.getDeadline()) <= Date.now()
    ? new MuserError('DEADLINE_EXCEEDED', 'the deadline of the call has passed')
    : new MuserError('CANCELLED', 'the caller is gone or has cancelled');
}

/** Waits for the last byte or the call's end; a reader that never takes it loses its connection. */
function ended(call: Call, connections: ConnectionTable): Promise<void> {
  return new Promise((resolve) => {
    if (call.cancelled || call.writableFinished) {
      resolve();
      return;
    }
    const limit = setTimeout(() => connections.disconnect(call.getPeer()), SEND_STALL_TIMEOUT_MS);
    const done = () => {
      clearTimeout(limit);
      call.off('cancelled', done).off('finish', done);
      resolve();
    };
    call.once('cancelled', done).once('finish', done);
  });
}
