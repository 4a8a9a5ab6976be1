// How a decoder follows the order to renew its certificate, with a coordinator that a test plays, over real gRPC and TLS.
import { X509Certificate } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { MuserError, PROTOCOL_VERSION, type CertificateRequest, type IssuedCertificate } from '@muser/protocol';
import type { Logger } from '@muser/service-kit';
import { TestAuthority, writeIdentityFolder } from '@muser/testing';
import {
  addPlacementService,
  createServer,
  fromCertificateRequest,
  LiveIdentity,
  PeerListener,
} from '@muser/transport';
import { afterEach, beforeEach, expect, test, vi, type MockInstance } from 'vitest';
import { CertificateRenewal } from '../../src/producers/renewal.js';

const RETRY_AFTER_MS = 10_000;

let nowMs: number;
let authority: TestAuthority;
let folder: string;
let identity: LiveIdentity;
let listener: PeerListener;
let renewal: CertificateRenewal;
/** Called when an order begins to be carried out. */
let begins: MockInstance<LiveIdentity['request']>;
/** The decoder's log. */
let said: string[];
let answer: (request: CertificateRequest) => Promise<IssuedCertificate>;

beforeEach(async () => {
  nowMs = 1_000_000;
  vi.spyOn(performance, 'now').mockImplementation(() => nowMs);
  authority = await TestAuthority.create();
  folder = await mkdtemp(join(tmpdir(), 'muser-renewal-'));
  await writeIdentityFolder(folder, await authority.identity('decoder'));
  identity = await LiveIdentity.load(folder, 'decoder');
  begins = vi.spyOn(identity, 'request');
  answer = issued;
  const server = createServer();
  addPlacementService(server, {
    authorize: () => undefined,
    watch: () => Promise.resolve(),
    renewCertificate: ({ request }) => answer(request),
  });
  const coordinator = await authority.identity('coordinator');
  listener = await PeerListener.listen({ identity: coordinator, host: '127.0.0.1', port: 0, server });
  said = [];
  const say = (_fields: object, message: string): void => void said.push(message);
  renewal = new CertificateRenewal({
    identity,
    target: `127.0.0.1:${listener.address.port}`,
    logger: { info: say, warn: say } as unknown as Logger,
  });
});
afterEach(async () => {
  vi.restoreAllMocks();
  await renewal.close();
  await listener.close(0);
  await rm(folder, { recursive: true });
});

async function issued(request: CertificateRequest): Promise<IssuedCertificate> {
  const { certificatePem } = await authority.issue(fromCertificateRequest(request, 'decoder'));
  return { protocolVersion: PROTOCOL_VERSION, certificate: new X509Certificate(certificatePem).raw };
}

const refused = (): Promise<never> => Promise.reject(new MuserError('UNAVAILABLE', 'not now'));

/** Follows an order, as every list repeats it, until the log says how that ended. */
async function follow(order: string): Promise<string | undefined> {
  const before = said.length;
  renewal.follow(order);
  await vi.waitFor(() => expect(said.length).toBeGreaterThan(before));
  // What ran is over when nothing more can begin beside it.
  await new Promise(setImmediate);
  return said.at(-1);
}

test('each order is carried out once', async () => {
  const serials = [identity.serial];
  for (const order of ['one', 'other']) {
    expect(await follow(order)).toBe('certificate renewed');
    serials.push(identity.serial);
    renewal.follow(order);
    renewal.follow('');
  }
  expect(begins).toHaveBeenCalledTimes(2);
  expect(new Set(serials).size).toBe(3);
});

test('one that failed is tried again, not at once; the old certificate stays meanwhile', async () => {
  const { serial } = identity;
  answer = refused;
  expect(await follow('one')).toBe('certificate not renewed');
  expect(identity.serial).toBe(serial);
  answer = issued;
  nowMs += RETRY_AFTER_MS - 1;
  renewal.follow('one');
  expect(begins).toHaveBeenCalledTimes(1);
  nowMs += 1;
  expect(await follow('one')).toBe('certificate renewed');
  expect(identity.serial).not.toBe(serial);
});

test('a certificate that does not fit the new key is not taken', async () => {
  const { serial } = identity;
  const other = await authority.identity('decoder');
  const { raw } = new X509Certificate(other.tlsCertificatePem);
  answer = () => Promise.resolve({ protocolVersion: PROTOCOL_VERSION, certificate: raw });
  expect(await follow('one')).toBe('certificate not renewed');
  expect(identity.serial).toBe(serial);
  expect((await LiveIdentity.load(folder, 'decoder')).serial).toBe(serial);
});

test('while one is under way no other begins, and closing ends it', async () => {
  const arrived = new Promise<void>((resolve) => {
    answer = () => {
      resolve();
      return new Promise(() => undefined);
    };
  });
  renewal.follow('one');
  renewal.follow('other');
  await arrived;
  renewal.follow('other');
  await renewal.close();
  renewal.follow('third');
  expect(begins).toHaveBeenCalledTimes(1);
  expect(said).toEqual([]);
});
