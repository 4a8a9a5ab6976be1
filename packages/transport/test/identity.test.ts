import { X509Certificate } from 'node:crypto';
import { chmod, mkdtemp, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { writeIdentityFolder } from '@muser/testing';
import { nodeIdOf, verifyingKey } from '@muser/protocol';
import { Pkcs10CertificateRequest } from '@peculiar/x509';
import { describe, expect, it } from 'vitest';
import { createIdentity, installIdentity, loadIdentity, peerOf } from '../src/index.js';
import { afterTest, authority, expectCode, strangers } from './harness.js';

const HOUR_MS = 3_600_000;

async function folder(): Promise<string> {
  const dir = await mkdtemp(join(tmpdir(), 'muser-identity-'));
  afterTest(() => rm(dir, { recursive: true }));
  return join(dir, 'identity');
}

async function modeOf(path: string): Promise<string> {
  return ((await stat(path)).mode & 0o777).toString(8);
}

describe('creating an identity', () => {
  // promise: Keys are made so that only their owner can read them, and both are proved to belong to the node.
  it('makes keys that only the owner can read, and proves that both belong to the node', async () => {
    const dir = await folder();
    const request = await createIdentity(dir, 'producer');
    expect(await modeOf(dir)).toBe('700');
    for (const name of await readdir(dir)) expect(await modeOf(join(dir, name))).toBe('600');
    const csr = new Pkcs10CertificateRequest(request.csrPem);
    expect(await csr.verify()).toBe(true);
    const publicKey = Buffer.from(request.signingPublicKey, 'base64');
    expect(csr.subject).toBe(`CN=${nodeIdOf(publicKey)}`);
    const der = new Uint8Array(csr.rawData);
    const proof = Buffer.from(request.proof, 'base64');
    expect(() => verifyingKey(publicKey).verify('muser/1/csr', [der], proof)).not.toThrow();
    der[der.length - 1]! ^= 1;
    expect(() => verifyingKey(publicKey).verify('muser/1/csr', [der], proof)).toThrow();
  });

  // promise: A request for a certificate holds no private key.
  it('keeps no private key in the request', async () => {
    const dir = await folder();
    const request = JSON.stringify(await createIdentity(dir, 'producer'));
    expect(request).not.toContain((await readFile(join(dir, 'identity.key'), 'utf8')).trim());
    expect(request).not.toContain('PRIVATE KEY');
  });

  it('is the same node when asked again, also by several at once', async () => {
    const dir = await folder();
    const requests = await Promise.all([1, 2, 3, 4].map(() => createIdentity(dir, 'decoder')));
    requests.push(await createIdentity(dir, 'decoder'));
    expect(new Set(requests.map((request) => request.signingPublicKey)).size).toBe(1);
    expect((await readdir(dir)).sort()).toEqual(['identity.key', 'keys.json']);
  });

  it('refuses to become another role', async () => {
    const dir = await folder();
    await createIdentity(dir, 'decoder');
    await expectCode(createIdentity(dir, 'producer'), 'CONFIG_INVALID');
  });
});

describe('installing and loading an identity', () => {
  it('works with what a coordinator answers', async () => {
    const dir = await folder();
    const request = await createIdentity(dir, 'producer');
    const bundle = await authority.issue(request);
    const installed = await installIdentity(dir, bundle);
    const loaded = await loadIdentity(dir);
    expect(loaded.nodeId).toBe(nodeIdOf(Buffer.from(request.signingPublicKey, 'base64')));
    expect({ ...loaded, signingKey: null }).toEqual({ ...installed, signingKey: null });
    expect(peerOf(new X509Certificate(loaded.tlsCertificatePem))).toMatchObject({
      role: 'producer',
      nodeId: loaded.nodeId,
    });
    expect(await modeOf(join(dir, 'bundle.json'))).toBe('600');
  });

  it('reads the folders that @muser/testing writes', async () => {
    const dir = await folder();
    const identity = await authority.identity('decoder');
    await writeIdentityFolder(dir, identity);
    expect(await loadIdentity(dir)).toMatchObject({ nodeId: identity.nodeId, role: 'decoder' });
  });

  it('says what to do when there is nothing, or no certificate yet', async () => {
    const dir = await folder();
    expect((await expectCode(loadIdentity(dir), 'NOT_FOUND')).message).toContain('create the identity first');
    const bundle = await authority.issue(await createIdentity(await folder(), 'producer'));
    await expectCode(installIdentity(dir, bundle), 'NOT_FOUND');
    await createIdentity(dir, 'producer');
    expect((await expectCode(loadIdentity(dir), 'NOT_FOUND')).message).toContain('enroll it');
  });

  // promise: Keys that other users can read are refused.
  it.each([
    ['keys.json', 0o640],
    ['bundle.json', 0o604],
    ['.', 0o755],
  ])('refuses %s with mode %o', async (name, mode) => {
    const dir = await folder();
    await writeIdentityFolder(dir, await authority.identity('producer'));
    await chmod(join(dir, name), mode);
    const error = await expectCode(loadIdentity(dir), 'CONFIG_INVALID');
    expect(error.message).toMatch(/run chmod [67]00/);
  });

  // promise: A damaged key file is refused without a word of it in the message.
  it('refuses damaged files without quoting them', async () => {
    const dir = await folder();
    await writeIdentityFolder(dir, await authority.identity('producer'));
    await writeFile(join(dir, 'keys.json'), '{"signingSeed":"c2VjcmV0"', { mode: 0o600 });
    const error = await expectCode(loadIdentity(dir), 'CONFIG_INVALID');
    expect(`${error.message} ${error.stack}`).not.toContain('c2VjcmV0');
    await writeFile(join(dir, 'keys.json'), 'x'.repeat(70_000), { mode: 0o600 });
    await expectCode(loadIdentity(dir), 'CONFIG_INVALID');
  });

  // promise: A certificate for other keys, of another role or of another authority is refused, and nothing is stored
  // then.
  it('refuses a bundle for other keys, another role or of another CA, and stores nothing then', async () => {
    const dir = await folder();
    const request = await createIdentity(dir, 'producer');
    const other = await createIdentity(await folder(), 'producer');
    const good = await authority.issue(request);
    const bad = [
      await authority.issue(other),
      await authority.issue({ ...request, role: 'coordinator' }),
      await authority.issue({ ...request, csrPem: other.csrPem }),
      { ...good, caPem: strangers.caPem },
      { ...good, nodeId: (await authority.issue(other)).nodeId },
      { ...good, certificatePem: 'nothing' },
      { ...good, coordinatorPublicKey: 'AAAA' },
    ];
    for (const bundle of bad) await expectCode(installIdentity(dir, bundle), 'CERTIFICATE_INVALID');
    expect((await readdir(dir)).sort()).toEqual(['identity.key', 'keys.json']);
    await installIdentity(dir, good);
  });

  // promise: An expired certificate and clocks that differ too much are told apart.
  it('refuses an expired certificate, and one that is not valid yet as a matter of clocks', async () => {
    const dir = await folder();
    const request = await createIdentity(dir, 'producer');
    const period = (from: number, to: number) => ({
      notBefore: new Date(Date.now() + from),
      notAfter: new Date(Date.now() + to),
    });
    const expired = await authority.issue(request, period(-2 * HOUR_MS, -HOUR_MS));
    expect((await expectCode(installIdentity(dir, expired), 'CERTIFICATE_INVALID')).message).toContain('expired at');
    const early = await authority.issue(request, period(HOUR_MS, 2 * HOUR_MS));
    expect((await expectCode(installIdentity(dir, early), 'CLOCK_SKEW')).message).toContain("this machine's clock");
  });
});

describe('peerOf', () => {
  // promise: A certificate with a second name hidden in it is refused.
  it.each([
    'muser:producer:',
    'muser:wizard:naaaaaaaaaaaaaaaaaaaaaaaaaa',
    'https://example.org/',
    'muser:producer:naaaaaaaaaaaaaaaaaaaaaaaaaa, URI:muser:coordinator:naaaaaaaaaaaaaaaaaaaaaaaaaa',
  ])('takes no certificate with the URI %s', async (uri) => {
    const { tlsCertificatePem } = await authority.identity('producer', { uri });
    expect(() => peerOf(new X509Certificate(tlsCertificatePem))).toThrow(
      expect.objectContaining({ code: 'CERTIFICATE_INVALID' }),
    );
  });

  it('takes no certificate whose subject is another node, and no garbage', async () => {
    const other = await authority.identity('producer');
    const { tlsCertificatePem } = await authority.identity('producer', { uri: `muser:producer:${other.nodeId}` });
    expect(() => peerOf(new X509Certificate(tlsCertificatePem))).toThrow('subject');
    expect(() => peerOf(Buffer.from('garbage'))).toThrow(expect.objectContaining({ code: 'CERTIFICATE_INVALID' }));
  });
});
