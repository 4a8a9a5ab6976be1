import { randomBytes, webcrypto } from 'node:crypto';
import { availableParallelism } from 'node:os';
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
import type { TransferOptions } from './transfer.js';

const WIRE_TYPES: WireType[] = ['f16', 'bf16'];
const CORES_FOR_BACKGROUND_HASH = 4;

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
    // Where cores are few, a hash beside this thread would only take time from the engine's.
    ...(availableParallelism() >= CORES_FOR_BACKGROUND_HASH ? { hash: hashBesideTheNetwork } : {}),
  });
  return { requestBytes, receiver };
}

/** WebCrypto hashes on a thread of libuv's pool, so that the network thread goes on decrypting. */
async function hashBesideTheNetwork(payload: Uint8Array): Promise<Uint8Array> {
  return new Uint8Array(await webcrypto.subtle.digest('SHA-256', payload));
}
