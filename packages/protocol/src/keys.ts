import { createPrivateKey, createPublicKey, sign, verify, type KeyObject } from 'node:crypto';
import nacl from 'tweetnacl';
import { MuserError } from './errors.js';
import { PUBLIC_KEY_BYTES, SEED_BYTES, SIGNATURE_BYTES } from './limits.js';
import { publicKeyProblem } from './curve.js';
import { lengthPrefixed } from './wire/bytes.js';

/** What a signature is for. A signature made for one domain is refused in every other. */
export type Domain =
  'muser/1/begin' | 'muser/1/shard' | 'muser/1/seal' | 'muser/1/ticket' | 'muser/1/csr' | 'muser/1/qualification';

export interface SigningKey {
  /** Ed25519, 32 bytes. */
  readonly publicKey: Uint8Array;
  /** Ed25519 signature, 64 bytes, over the length-prefixed domain and parts (see signedBytes). */
  sign(domain: Domain, ...parts: Uint8Array[]): Uint8Array;
}

export interface VerifyingKey {
  readonly publicKey: Uint8Array;
  /** @throws MuserError SIGNATURE_INVALID, also for signatures of a wrong length and malleated ones (S not below L). */
  verify(domain: Domain, parts: readonly Uint8Array[], signature: Uint8Array): void;
}

/** PKCS #8 of an Ed25519 private key up to the seed (RFC 8410). */
const PKCS8_PREFIX = Buffer.from('302e020100300506032b657004220420', 'hex');
/** SubjectPublicKeyInfo of an Ed25519 public key up to the key (RFC 8410). */
const SPKI_PREFIX = Buffer.from('302a300506032b6570032100', 'hex');

/** What is signed: for the domain and each part, its length as u32 LE and its bytes. */
export function signedBytes(domain: Domain, parts: readonly Uint8Array[]): Buffer {
  return lengthPrefixed([Buffer.from(domain, 'utf8'), ...parts]);
}

/** A new Ed25519 key. The seed is the secret: keep it in a file of mode 0600 or a key store, never in a log. */
export function generateSigningKey(): { publicKey: Uint8Array; seed: Uint8Array } {
  const pair = nacl.sign.keyPair();
  return { publicKey: pair.publicKey, seed: pair.secretKey.slice(0, SEED_BYTES) };
}

/** @throws MuserError INVALID_REQUEST when the seed does not have 32 bytes. */
export function signingKeyFromSeed(seed: Uint8Array): SigningKey {
  if (seed.length !== SEED_BYTES) {
    throw new MuserError('INVALID_REQUEST', `an Ed25519 seed has ${SEED_BYTES} bytes, not ${seed.length}`);
  }
  const key = createPrivateKey({ key: Buffer.concat([PKCS8_PREFIX, seed]), format: 'der', type: 'pkcs8' });
  const spki = createPublicKey(key).export({ format: 'der', type: 'spki' });
  return {
    publicKey: spki.subarray(SPKI_PREFIX.length),
    sign: (domain, ...parts) => sign(null, signedBytes(domain, parts), key),
  };
}

/**
 * A key that signatures are checked with.
 * @throws MuserError SIGNATURE_INVALID for a key of a wrong length, one that is not in canonical form, not a point of the
 * curve, or of small order (for such a key there are signatures that fit every message).
 */
export function verifyingKey(publicKey: Uint8Array): VerifyingKey {
  const problem =
    publicKey.length === PUBLIC_KEY_BYTES
      ? publicKeyProblem(publicKey)
      : `has ${publicKey.length} bytes, needs ${PUBLIC_KEY_BYTES}`;
  if (problem !== null) throw new MuserError('SIGNATURE_INVALID', `Ed25519 public key ${problem}`);
  const own = Uint8Array.from(publicKey);
  const key = createPublicKey({ key: Buffer.concat([SPKI_PREFIX, own]), format: 'der', type: 'spki' });
  return {
    publicKey: own,
    verify(domain, parts, signature) {
      if (!isSigned(key, domain, parts, signature)) {
        throw new MuserError('SIGNATURE_INVALID', `the signature for ${domain} is not valid`);
      }
    },
  };
}

function isSigned(key: KeyObject, domain: Domain, parts: readonly Uint8Array[], signature: Uint8Array): boolean {
  return signature.length === SIGNATURE_BYTES && verify(null, signedBytes(domain, parts), key, signature);
}
