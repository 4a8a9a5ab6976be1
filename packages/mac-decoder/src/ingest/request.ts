import { randomBytes } from 'node:crypto';
import {
  encodePrefillRequest,
  NONCE_BYTES,
  PROTOCOL_VERSION,
  requestDigestOf,
  tokensDigest,
  TransferReceiver,
  verifyingKey,
  type Geometry,
  type ModelIdentity,
  type ProducerEntry,
  type WireType,
} from '@muser/protocol';
import { hashPayload } from '@muser/transport';
import type { SequenceLease } from '../engine/sequence-lease.js';

const WIRE_TYPES: WireType[] = ['f16', 'bf16'];

/** What is asked for, and of whom. */
export interface WantedTransfer {
  readonly lease: SequenceLease;
  readonly producer: ProducerEntry;
  readonly model: ModelIdentity;
  readonly geometry: Geometry;
  /** The whole prompt. Rows [position of the sequence, length - 1) are transferred. */
  readonly tokens: Uint32Array;
  /** Compute chunk that the decoder would use itself. */
  readonly chunkTokens: number;
  readonly deadlineMs: number;
}

/**
 * Makes the request for one transfer and the receiver that accepts only an answer to exactly this request, from exactly
 * this producer.
 */
export function openTransfer(wanted: WantedTransfer): { requestBytes: Buffer; receiver: TransferReceiver } {
  const { producer, model, geometry, tokens, lease } = wanted;
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
    deadlineMs: wanted.deadlineMs,
    chunkTokens: wanted.chunkTokens,
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
