import 'reflect-metadata';
import { webcrypto } from 'node:crypto';
import { Pkcs10CertificateRequestGenerator, SubjectAlternativeNameExtension } from '@peculiar/x509';
import { nodeIdOf, type CertificateRequest, type SigningKey } from '@muser/protocol';
import type { IdentityRequest, Role } from './types.js';

const TLS_KEY = { name: 'ECDSA', namedCurve: 'P-256' };
const TLS_SIGNATURE = { name: 'ECDSA', hash: 'SHA-256' };

/** A new ECDSA P-256 key, PKCS #8 PEM. */
export async function generateTlsKeyPem(): Promise<string> {
  const keys = await webcrypto.subtle.generateKey(TLS_KEY, true, ['sign', 'verify']);
  const der = await webcrypto.subtle.exportKey('pkcs8', keys.privateKey);
  return toPem('PRIVATE KEY', new Uint8Array(der));
}

/** The enrollment request for two existing keys; each of the two signs. */
export async function makeRequest(role: Role, tlsKeyPem: string, signingKey: SigningKey): Promise<IdentityRequest> {
  const nodeId = nodeIdOf(signingKey.publicKey);
  const csr = await Pkcs10CertificateRequestGenerator.create(
    {
      name: `CN=${nodeId}`,
      keys: await importKeyPair(tlsKeyPem),
      signingAlgorithm: TLS_SIGNATURE,
      extensions: [new SubjectAlternativeNameExtension([{ type: 'url', value: `muser:${role}:${nodeId}` }])],
    },
    webcrypto,
  );
  return {
    role,
    signingPublicKey: Buffer.from(signingKey.publicKey).toString('base64'),
    csrPem: csr.toString('pem'),
    proof: Buffer.from(signingKey.sign('muser/1/csr', new Uint8Array(csr.rawData))).toString('base64'),
  };
}

/** The same request as it goes over the wire of a node that is enrolled already. */
export function toCertificateRequest(request: IdentityRequest): Omit<CertificateRequest, 'protocolVersion'> {
  return {
    signingPublicKey: Buffer.from(request.signingPublicKey, 'base64'),
    csr: fromPem(request.csrPem),
    proof: Buffer.from(request.proof, 'base64'),
  };
}

/** The inverse of toCertificateRequest; the role is the one that the sender is enrolled in. */
export function fromCertificateRequest(request: CertificateRequest, role: Role): IdentityRequest {
  return {
    role,
    signingPublicKey: Buffer.from(request.signingPublicKey).toString('base64'),
    csrPem: toPem('CERTIFICATE REQUEST', request.csr),
    proof: Buffer.from(request.proof).toString('base64'),
  };
}

async function importKeyPair(tlsKeyPem: string): Promise<webcrypto.CryptoKeyPair> {
  const der = fromPem(tlsKeyPem);
  const privateKey = await webcrypto.subtle.importKey('pkcs8', der, TLS_KEY, true, ['sign']);
  const jwk = await webcrypto.subtle.exportKey('jwk', privateKey);
  const publicJwk = { kty: jwk.kty, crv: jwk.crv, x: jwk.x, y: jwk.y } as webcrypto.JsonWebKey;
  const publicKey = await webcrypto.subtle.importKey('jwk', publicJwk, TLS_KEY, true, ['verify']);
  return { privateKey, publicKey };
}

function fromPem(pem: string): Buffer<ArrayBuffer> {
  return Buffer.from(pem.replace(/-----[A-Z ]+-----/g, ''), 'base64');
}

export function toPem(label: string, der: Uint8Array): string {
  const lines =
    Buffer.from(der)
      .toString('base64')
      .match(/.{1,64}/g) ?? [];
  return [`-----BEGIN ${label}-----`, ...lines, `-----END ${label}-----`, ''].join('\n');
}
