import { createHash } from 'node:crypto';
import { NODE_ID_BYTES } from './limits.js';

const ALPHABET = 'abcdefghijklmnopqrstuvwxyz234567';
const NODE_ID = /^n[a-z2-7]{26}$/;

/** A node's id is its identity key: "n" and the first 130 bits of the key's SHA-256 in lower-case base32 (RFC 4648). */
export function nodeIdOf(publicKey: Uint8Array): string {
  const digest = createHash('sha256').update(publicKey).digest();
  let id = 'n';
  for (let bit = 0; id.length < NODE_ID_BYTES; bit += 5) {
    const pair = digest.readUInt16BE(bit >> 3);
    id += ALPHABET[(pair >> (11 - (bit & 7))) & 31];
  }
  return id;
}

export function isNodeId(value: unknown): value is string {
  return typeof value === 'string' && NODE_ID.test(value);
}
