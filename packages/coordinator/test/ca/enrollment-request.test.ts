import { webcrypto } from 'node:crypto';

import { generateSigningKey, nodeIdOf, signingKeyFromSeed, type SigningKey } from '@muser/protocol';
import { createIdentity, type IdentityRequest } from '@muser/transport';
import { PemConverter, Pkcs10CertificateRequestGenerator } from '@peculiar/x509';
import { beforeAll, describe, expect, it } from 'vitest';

import { verifyRequest } from '../../src/ca/enrollment-request.js';
import { temporaryFolder } from '../support/folders.js';

type KeyAlgorithm = webcrypto.EcKeyGenParams | webcrypto.RsaHashedKeyGenParams;
const P256 = { name: 'ECDSA', namedCurve: 'P-256' };

async function csrWith(algorithm: KeyAlgorithm): Promise<Uint8Array> {
  const keys = await webcrypto.subtle.generateKey(algorithm, true, ['sign', 'verify']);
  const signingAlgorithm = { name: algorithm.name, hash: 'SHA-256' };
  const csr = await Pkcs10CertificateRequestGenerator.create({ name: 'CN=x', keys, signingAlgorithm }, webcrypto);
  return new Uint8Array(csr.rawData);
}

function requestFor(csr: Uint8Array, key: SigningKey): IdentityRequest {
  return {
    role: 'producer',
    signingPublicKey: Buffer.from(key.publicKey).toString('base64'),
    csrPem: PemConverter.encode(Uint8Array.from(csr).buffer, 'CERTIFICATE REQUEST'),
    proof: Buffer.from(key.sign('muser/1/csr', csr)).toString('base64'),
  };
}

const refused = (message: string) => ({ code: 'ENROLL_REFUSED', message: expect.stringContaining(message) as string });

describe('verifyRequest', () => {
  let key: SigningKey;
  let csr: Uint8Array;
  beforeAll(async () => {
    key = signingKeyFromSeed(generateSigningKey().seed);
    csr = await csrWith(P256);
  });

  it('accepts what a node makes, and gives the id of its key', async () => {
    const request = await createIdentity(await temporaryFolder(), 'producer');
    const { nodeId, signingPublicKey } = await verifyRequest(request);
    expect(Buffer.from(signingPublicKey).toString('base64')).toBe(request.signingPublicKey);
    expect(nodeId).toBe(nodeIdOf(signingPublicKey));
    expect((await verifyRequest(requestFor(csr, key))).nodeId).toBe(nodeIdOf(key.publicKey));
  });

  it.each([
    ['P-384', { name: 'ECDSA', namedCurve: 'P-384' }],
    [
      'RSA',
      { name: 'RSASSA-PKCS1-v1_5', modulusLength: 2048, publicExponent: new Uint8Array([1, 0, 1]), hash: 'SHA-256' },
    ],
  ])('refuses a TLS key of %s', async (_name, algorithm) => {
    await expect(verifyRequest(requestFor(await csrWith(algorithm), key))).rejects.toMatchObject(refused('P-256'));
  });

  it('refuses a request that its TLS key did not sign as it is', async () => {
    const changed = Uint8Array.from(csr);
    changed[changed.length - 1] = (changed.at(-1) ?? 0) ^ 1;
    await expect(verifyRequest(requestFor(changed, key))).rejects.toMatchObject(refused('not signed by its own key'));
  });

  // promise: A node is enrolled only when it has proved that both its keys are its own.
  it('refuses a request that another node signed, or that was signed for something else', async () => {
    const request = requestFor(csr, key);
    const other = signingKeyFromSeed(generateSigningKey().seed);
    const foreign = [
      { ...request, signingPublicKey: Buffer.from(other.publicKey).toString('base64') },
      { ...request, proof: Buffer.from(other.sign('muser/1/csr', csr)).toString('base64') },
      { ...request, proof: Buffer.from(key.sign('muser/1/ticket', csr)).toString('base64') },
      { ...request, csrPem: requestFor(await csrWith(P256), key).csrPem },
      { ...request, proof: '' },
    ];
    for (const candidate of foreign) {
      await expect(verifyRequest(candidate)).rejects.toMatchObject(refused('did not sign this certificate request'));
    }
  });

  it('refuses identity keys for which anybody can make signatures', async () => {
    const weak = ['00'.repeat(32), `01${'00'.repeat(31)}`, 'ff'.repeat(32), '', '00'.repeat(31)];
    for (const hex of weak) {
      const request = { ...requestFor(csr, key), signingPublicKey: Buffer.from(hex, 'hex').toString('base64') };
      await expect(verifyRequest(request)).rejects.toMatchObject(refused('public key'));
    }
  });

  it.each(['', 'x', '-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----'])(
    'refuses %j as a certificate request',
    async (csrPem) => {
      await expect(verifyRequest({ ...requestFor(csr, key), csrPem })).rejects.toMatchObject(
        refused('cannot be parsed'),
      );
    },
  );

  it('refuses a certificate request cut off or changed at any byte, with this error only', async () => {
    for (let at = 0; at < csr.length; at += 7) {
      const changed = Uint8Array.from(csr);
      changed[at] = (changed[at] ?? 0) ^ 0x40;
      for (const bytes of [changed, csr.subarray(0, at)]) {
        await expect(verifyRequest(requestFor(bytes, key))).rejects.toMatchObject({ code: 'ENROLL_REFUSED' });
      }
    }
  });
});
