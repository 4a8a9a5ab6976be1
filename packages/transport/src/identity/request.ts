import 'reflect-metadata';
import { webcrypto } from 'node:crypto';
import { Pkcs10CertificateRequestGenerator, SubjectAlternativeNameExtension } from '@peculiar/x509';
import { nodeIdOf, type SigningKey } from '@muser/protocol';
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

async function importKeyPair(tlsKeyPem: string): Promise<webcrypto.CryptoKeyPair> {
  const der = Buffer.from(tlsKeyPem.replace(/-----[A-Z ]+-----/g, ''), 'base64');
  const privateKey = await webcrypto.subtle.importKey('pkcs8', der, TLS_KEY, true, ['sign']);
  const jwk = await webcrypto.subtle.exportKey('jwk', privateKey);
  const publicJwk = { kty: jwk.kty, crv: jwk.crv, x: jwk.x, y: jwk.y } as webcrypto.JsonWebKey;
  const publicKey = await webcrypto.subtle.importKey('jwk', publicJwk, TLS_KEY, true, ['verify']);
  return { privateKey, publicKey };
}

function toPem(label: string, der: Uint8Array): string {
  const lines =
    Buffer.from(der)
      .toString('base64')
      .match(/.{1,64}/g) ?? [];
  return [`-----BEGIN ${label}-----`, ...lines, `-----END ${label}-----`, ''].join('\n');
}
