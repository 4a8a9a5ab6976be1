import { X509Certificate } from 'node:crypto';
import { chmod, mkdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

import { createIdentity, installIdentity, peerOf } from '@muser/transport';
import { describe, expect, it, onTestFinished } from 'vitest';

import { Authority } from '../../src/ca/authority.js';
import { verifyRequest } from '../../src/ca/enrollment-request.js';
import { openKeys } from '../../src/ca/own-identity.js';
import { SqliteStore } from '../../src/registry/sqlite-store.js';
import { temporaryFolder } from '../support/folders.js';

const MINUTE_MS = 60_000;
const DAY_MS = 24 * 60 * MINUTE_MS;

describe('Authority', () => {
  it('issues a certificate for 30 days, as client and server, that names role and node', async () => {
    const nowMs = Math.floor(Date.now() / 1_000) * 1_000;
    const authority = await Authority.create(join(await temporaryFolder(), 'ca'), nowMs);
    const { nodeId, tlsKey } = await verifyRequest(await createIdentity(await temporaryFolder(), 'producer'));
    const issued = await authority.issue({ role: 'producer', nodeId, tlsKey, nowMs });
    const certificate = new X509Certificate(issued.certificatePem);
    const root = new X509Certificate(authority.certificatePem);
    expect(peerOf(certificate)).toMatchObject({ role: 'producer', nodeId });
    expect(certificate.subject).toBe(`CN=${nodeId}`);
    expect(certificate.subjectAltName).toBe(`URI:muser:producer:${nodeId}`);
    expect(Date.parse(certificate.validFrom)).toBe(nowMs - 10 * MINUTE_MS);
    expect(Date.parse(certificate.validTo)).toBe(nowMs + 30 * DAY_MS);
    expect(issued.expiresAtMs).toBe(nowMs + 30 * DAY_MS);
    expect(certificate.serialNumber.toLowerCase()).toBe(issued.serial);
    expect(certificate.keyUsage).toEqual(['1.3.6.1.5.5.7.3.1', '1.3.6.1.5.5.7.3.2']);
    expect(certificate.ca).toBe(false);
    expect(certificate.checkIssued(root) && certificate.verify(root.publicKey)).toBe(true);
    expect(root.ca && root.verify(root.publicKey)).toBe(true);
    expect(Date.parse(root.validFrom)).toBeLessThan(Date.parse(certificate.validFrom));
  });

  it('gives every certificate a serial number of its own', async () => {
    const authority = await Authority.create(join(await temporaryFolder(), 'ca'), Date.now());
    const { nodeId, tlsKey } = await verifyRequest(await createIdentity(await temporaryFolder(), 'decoder'));
    const order = { role: 'decoder', nodeId, tlsKey, nowMs: Date.now() } as const;
    const serials = await Promise.all(Array.from({ length: 20 }, async () => (await authority.issue(order)).serial));
    expect(new Set(serials).size).toBe(20);
  });

  it('keeps its key in a file for its owner alone and is the same after a restart', async () => {
    const folder = join(await temporaryFolder(), 'ca');
    expect(await Authority.load(folder)).toBeNull();
    const created = await Authority.create(folder, Date.now());
    expect((await stat(join(folder, 'authority.json'))).mode & 0o777).toBe(0o600);
    expect((await stat(folder)).mode & 0o777).toBe(0o700);
    const loaded = await Authority.load(folder);
    expect(loaded?.certificatePem).toBe(created.certificatePem);
    expect(loaded?.sha256).toBe(created.sha256);
  });

  it('refuses a file that others can read', async () => {
    const folder = join(await temporaryFolder(), 'ca');
    await Authority.create(folder, Date.now());
    await chmod(join(folder, 'authority.json'), 0o640);
    await expect(Authority.load(folder)).rejects.toMatchObject({
      code: 'CONFIG_INVALID',
      message: expect.stringContaining('chmod 600') as string,
    });
  });

  it('refuses a damaged file without showing anything of it', async () => {
    const folder = join(await temporaryFolder(), 'ca');
    await Authority.create(folder, Date.now());
    const other = join(await temporaryFolder(), 'ca');
    await Authority.create(other, Date.now());
    const file = join(folder, 'authority.json');
    const mine = JSON.parse(await readFile(file, 'utf8')) as Record<string, string>;
    const theirs = JSON.parse(await readFile(join(other, 'authority.json'), 'utf8')) as Record<string, string>;
    const damages = [
      '',
      '{',
      JSON.stringify({ ...mine, version: 2 }),
      JSON.stringify({ ...mine, keyPem: 'hunter2' }),
      JSON.stringify({ ...mine, keyPem: theirs['keyPem'] }),
    ];
    for (const damage of damages) {
      await writeFile(file, damage);
      const error: unknown = await Authority.load(folder).catch((reason: unknown) => reason);
      expect(error).toMatchObject({ code: 'CONFIG_INVALID', message: expect.stringContaining('damaged') as string });
      expect((error as Error).cause).toBeUndefined();
      expect((error as Error).message).not.toContain('hunter2');
    }
  });
});

describe('openKeys', () => {
  async function state() {
    const stateDir = await temporaryFolder();
    const store = SqliteStore.open(join(stateDir, 'registry.sqlite'));
    onTestFinished(() => store.close());
    const authorityFolder = join(stateDir, 'ca');
    const identityFolder = join(stateDir, 'identity');
    const open = (nowMs = Date.now()) => openKeys({ authorityFolder, identityFolder, store, nowMs });
    return { authorityFolder, identityFolder, open };
  }

  it('makes the keys once and a new certificate of its own each time', async () => {
    const { open } = await state();
    const first = await open(Date.now() - DAY_MS);
    const second = await open();
    expect(second.authority.sha256).toBe(first.authority.sha256);
    expect(second.identity.nodeId).toBe(first.identity.nodeId);
    expect(Buffer.from(first.identity.signingKey.publicKey)).toEqual(Buffer.from(second.identity.coordinatorPublicKey));
    expect(second.identity.tlsCertificatePem).not.toBe(first.identity.tlsCertificatePem);
    expect(peerOf(new X509Certificate(second.identity.tlsCertificatePem)).role).toBe('coordinator');
  });

  it.each(['authorityFolder', 'identityFolder'] as const)(
    'does not go on with new keys when those of its nodes are gone (%s)',
    async (name) => {
      const test = await state();
      await test.open();
      await rm(test[name], { recursive: true });
      await expect(test.open()).rejects.toMatchObject({
        code: 'CONFIG_INVALID',
        message: expect.stringContaining('restore') as string,
      });
    },
  );

  it('finishes a first start that was cut off', async () => {
    const test = await state();
    await mkdir(test.authorityFolder, { mode: 0o700 });
    await Authority.create(test.authorityFolder, Date.now());
    const made = await Authority.load(test.authorityFolder);
    expect((await test.open()).authority.sha256).toBe(made?.sha256);
  });

  it('has an identity that the transport accepts', async () => {
    const test = await state();
    const { identity, authority } = await test.open();
    const installed = await installIdentity(test.identityFolder, {
      nodeId: identity.nodeId,
      certificatePem: identity.tlsCertificatePem,
      caPem: authority.certificatePem,
      coordinatorPublicKey: Buffer.from(identity.coordinatorPublicKey).toString('base64'),
    });
    expect(installed.nodeId).toBe(identity.nodeId);
  });
});
