import type { Server, ServerWritableStream } from '@grpc/grpc-js';
import type { PeerIdentity } from '../identity/types.js';
import { MAX_TRANSFER_BYTES_IN_FLIGHT } from '../limits.js';
import { HANDOFF_SERVICE } from '../services.js';
import { sentBytesOf } from './sent-bytes.js';
import { connectionsOf } from './server.js';
import { runStreamCall, type Authorize } from './stream-call.js';

export interface PrefillCall {
  peer: PeerIdentity;
  /** The encoded PrefillRequest. */
  requestBytes: Buffer;
  /** Aborted with a MuserError when the client is gone or cancelled, or the deadline has passed. */
  signal: AbortSignal;
  /** Waits for the byte budget and for the stream's drain; throws the signal's reason, or STALLED. */
  send(frame: Buffer): Promise<void>;
  /** Handed to the stream and not yet taken by the socket. */
  readonly bytesInFlight: number;
}

export interface HandoffHandlers {
  authorize: Authorize;
  /** Settling ends the call: a MuserError is sent as the status; anything else as INTERNAL without its text. */
  prefill: (call: PrefillCall) => Promise<void>;
}

/** Adds muser.v1.Handoff to a server. */
export function addHandoffService(server: Server, { authorize, prefill }: HandoffHandlers): void {
  const connections = connectionsOf(server);
  const budgets = sentBytesOf(server);
  server.addService(HANDOFF_SERVICE, {
    Prefill: (call: ServerWritableStream<Buffer, Buffer>) => {
      void runStreamCall(call, {
        connections,
        authorize,
        budgetOf: (peer) => ({ parent: budgets.of(peer.nodeId), limitBytes: MAX_TRANSFER_BYTES_IN_FLIGHT }),
        handle: ({ peer, requestBytes, signal, sender }) =>
          prefill({
            peer,
            requestBytes,
            signal,
            send: (frame) => sender.send(frame),
            get bytesInFlight() {
              return sender.bytesInFlight;
            },
          }),
      });
    },
  });
}
