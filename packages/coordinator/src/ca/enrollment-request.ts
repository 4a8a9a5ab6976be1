import { webcrypto } from 'node:crypto';

import { MuserError, nodeIdOf, verifyingKey, type VerifyingKey } from '@muser/protocol';
import type { IdentityRequest } from '@muser/transport';
import { PemConverter, Pkcs10CertificateRequest, type PublicKey } from '@peculiar/x509';

/** An uncompressed P-256 key's SubjectPublicKeyInfo has this many bytes. */
const P256_SPKI_BYTES = 91;

/** What a request proves: this node id belongs to this identity key, and whoever has it also has this TLS key. */
export interface VerifiedRequest {
  nodeId: string;
  signingPublicKey: Uint8Array;
  tlsKey: PublicKey;
}

/**
 * Checks that the TLS key signed the certificate request and that the identity key signed the same bytes. Nothing else
 * in the request is taken over: name, role and extensions of the certificate are the coordinator's to choose.
 *
 * @throws MuserError ENROLL_REFUSED
 */
export async function verifyRequest(request: IdentityRequest): Promise<VerifiedRequest> {
  const { csr, tlsKey, isP256 } = parseCsr(request.csrPem);
  if (!isP256) throw refused('the TLS key is not ECDSA P-256');
  if (!(await csr.verify(webcrypto).catch(() => false))) {
    throw refused('the certificate request is not signed by its own key');
  }
  const key = identityKey(request.signingPublicKey);
  try {
    key.verify('muser/1/csr', [new Uint8Array(csr.rawData)], Buffer.from(request.proof, 'base64'));
  } catch (cause) {
    throw refused('the identity key did not sign this certificate request', cause);
  }
  return { nodeId: nodeIdOf(key.publicKey), signingPublicKey: key.publicKey, tlsKey };
}

/** The library parses the parts of a request when they are asked for, so all that is needed is asked for here. */
function parseCsr(pem: string): { csr: Pkcs10CertificateRequest; tlsKey: PublicKey; isP256: boolean } {
  try {
    const csr = new Pkcs10CertificateRequest(PemConverter.decodeFirst(pem));
    const tlsKey = csr.publicKey;
    const { name, namedCurve } = tlsKey.algorithm as webcrypto.EcKeyAlgorithm;
    const isP256 = name === 'ECDSA' && namedCurve === 'P-256' && tlsKey.rawData.byteLength === P256_SPKI_BYTES;
    return { csr, tlsKey, isP256 };
  } catch (cause) {
    throw refused('the certificate request cannot be parsed', cause);
  }
}

function identityKey(base64: string): VerifyingKey {
  try {
    return verifyingKey(Buffer.from(base64, 'base64'));
  } catch (cause) {
    throw refused(cause instanceof Error ? cause.message : 'the identity key cannot be used', cause);
  }
}

function refused(message: string, cause?: unknown): MuserError {
  return new MuserError('ENROLL_REFUSED', message, { cause });
}
