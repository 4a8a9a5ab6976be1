import { randomBytes } from 'node:crypto';
import {
  encodePrefillRequest,
  NONCE_BYTES,
  PROTOCOL_VERSION,
  requestDigestOf,
  tokensDigest,
  TransferReceiver,
  verifyingKey,
  type WireType,
} from '@muser/protocol';
import { hashPayload } from '@muser/transport';
import type { TransferOptions } from './transfer.js';

const WIRE_TYPES: WireType[] = ['f16', 'bf16'];

/**
 * Makes the request for one transfer and the receiver that accepts only an answer to exactly this request, from exactly
 * this producer.
 */
export function openTransfer(options: TransferOptions): { requestBytes: Buffer; receiver: TransferReceiver } {
  const { producer, model, geometry, tokens, lease } = options;
  const heldTokens = lease.sequence.position;
  const nonce = randomBytes(NONCE_BYTES);
  const requestBytes = encodePrefillRequest({
    protocolVersion: PROTOCOL_VERSION,
    nonce,
    ticket: producer.ticket,
    fingerprint: model.fingerprint,
    decoderModel: model.modelDigest,
    tokens,
    heldTokens,
    heldDigest: heldTokens === 0 ? new Uint8Array(0) : tokensDigest(tokens, heldTokens),
    wireTypes: WIRE_TYPES,
    deadlineMs: options.deadlineMs,
    chunkTokens: options.chunkTokens,
  });
  const receiver = new TransferReceiver({
    nonce,
    requestDigest: requestDigestOf(requestBytes),
    expect: {
      producerId: producer.nodeId,
      producerKey: verifyingKey(producer.signingPublicKey),
      fingerprint: model.fingerprint,
      geometry,
      wireTypes: WIRE_TYPES,
      firstToken: heldTokens,
      endToken: tokens.length - 1,
    },
    hash: hashPayload,
  });
  return { requestBytes, receiver };
}
