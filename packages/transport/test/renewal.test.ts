// A node's TLS key and certificate are replaced while it runs: what is checked, what is stored, and what goes on.
import { X509Certificate } from 'node:crypto';
import { mkdir, mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { connect as connectTls } from 'node:tls';
import { MuserError, type CertificateRequest } from '@muser/protocol';
import { writeIdentityFolder, type Validity } from '@muser/testing';
import { describe, expect, it } from 'vitest';
import { fromCertificateRequest, LiveIdentity, loadIdentity } from '../src/index.js';
import {
  afterTest,
  authority,
  connect,
  decoder,
  deferred,
  expectCode,
  producer,
  startProducer,
  strangers,
} from './harness.js';

const HOUR_MS = 3_600_000;

async function enrolled(): Promise<{ dir: string; live: LiveIdentity }> {
  const dir = await mkdtemp(join(tmpdir(), 'muser-renewal-'));
  afterTest(() => rm(dir, { recursive: true }));
  const identity = join(dir, 'identity');
  await writeIdentityFolder(identity, producer);
  return { dir: identity, live: await LiveIdentity.load(identity, 'producer') };
}

/** What a coordinator answers, DER. */
async function issued(request: CertificateRequest, period: Validity = {}, by = authority): Promise<Uint8Array> {
  const { certificatePem } = await by.issue(fromCertificateRequest(request, 'producer'), period);
  return new Uint8Array(new X509Certificate(certificatePem).raw);
}

/** The serial number that a new connection gets to see. */
function serialAt(port: number): Promise<string> {
  const { tlsKeyPem: key, tlsCertificatePem: cert, caPem: ca } = decoder;
  const options = { host: '127.0.0.1', port, key, cert, ca, ALPNProtocols: ['h2'] };
  return new Promise((resolve, reject) => {
    const socket = connectTls({ ...options, checkServerIdentity: () => undefined }, () => {
      resolve(socket.getPeerX509Certificate()?.serialNumber ?? 'none');
      socket.destroy();
    }).on('error', reject);
  });
}

describe('a renewed certificate', () => {
  it('belongs to a new key of the same node, and is found by the next start', async () => {
    const { dir, live } = await enrolled();
    const before = { ...live.current, serial: live.serial };
    const renewed = await live.install(await issued(await live.request()));
    expect(renewed.nodeId).toBe(before.nodeId);
    expect(renewed.tlsKeyPem).not.toBe(before.tlsKeyPem);
    expect(live.serial).not.toBe(before.serial);
    expect(live.current).toBe(renewed);
    const { tlsKeyPem, tlsCertificatePem } = await loadIdentity(dir);
    expect({ tlsKeyPem, tlsCertificatePem }).toEqual({
      tlsKeyPem: renewed.tlsKeyPem,
      tlsCertificatePem: renewed.tlsCertificatePem,
    });
  });

  // promise: A transfer that runs goes on while the producer gets a new certificate, and new connections get the new one.
  it('is what new connections get, while a stream that runs goes on', async () => {
    const { live } = await enrolled();
    const rest = deferred();
    const { listener, target } = await startProducer(
      async (call) => {
        await call.send(Buffer.from('before'));
        await rest.promise;
        await call.send(Buffer.from('after'));
      },
      { identity: { ...producer, ...live.current } },
    );
    live.onRenewal((renewed) => listener.useIdentity(renewed));
    const frames = connect(target).prefill(Buffer.alloc(1))[Symbol.asyncIterator]();
    expect((await frames.next()).value).toEqual(Buffer.from('before'));
    const old = live.serial;
    expect(await serialAt(listener.address.port)).toBe(old);
    await live.install(await issued(await live.request()));
    expect(live.serial).not.toBe(old);
    expect(await serialAt(listener.address.port)).toBe(live.serial);
    rest.resolve();
    expect((await frames.next()).value).toEqual(Buffer.from('after'));
    expect((await frames.next()).done).toBe(true);
  });

  const longAgo: Validity = { notBefore: new Date(Date.now() - 2 * HOUR_MS), notAfter: new Date(Date.now() - HOUR_MS) };
  const soon: Validity = { notBefore: new Date(Date.now() + HOUR_MS), notAfter: new Date(Date.now() + 2 * HOUR_MS) };
  it.each([
    ['of another CA', (request: CertificateRequest) => issued(request, {}, strangers), 'CERTIFICATE_INVALID'],
    ['that has ended', (request: CertificateRequest) => issued(request, longAgo), 'CERTIFICATE_INVALID'],
    ['that has not begun', (request: CertificateRequest) => issued(request, soon), 'CLOCK_SKEW'],
    ['that is none', () => Promise.resolve(Buffer.from('no certificate')), 'CERTIFICATE_INVALID'],
    [
      'of another node',
      () => Promise.resolve(new Uint8Array(new X509Certificate(decoder.tlsCertificatePem).raw)),
      'CERTIFICATE_INVALID',
    ],
    [
      "for the key of a request that isn't the newest",
      async (request: CertificateRequest, live: LiveIdentity) => {
        await live.request();
        return issued(request);
      },
      'CERTIFICATE_INVALID',
    ],
  ] as const)('%s is refused, and nothing changes', async (_, answer, code) => {
    const { dir, live } = await enrolled();
    const before = await readFile(join(dir, 'bundle.json'), 'utf8');
    const { current } = live;
    await expectCode(live.install(await answer(await live.request(), live)), code);
    expect(live.current).toBe(current);
    expect(await readFile(join(dir, 'bundle.json'), 'utf8')).toBe(before);
  });

  it('that nobody asked for is refused, also the same one twice', async () => {
    const { live } = await enrolled();
    await expectCode(live.install(await issued(await (await enrolled()).live.request())), 'CERTIFICATE_INVALID');
    const certificate = await issued(await live.request());
    await live.install(certificate);
    await expectCode(live.install(certificate), 'CERTIFICATE_INVALID');
  });

  it('is not used when it cannot be written down, and can be asked for again', async () => {
    const { dir, live } = await enrolled();
    const { current } = live;
    const file = join(dir, 'bundle.json');
    await rm(file);
    await mkdir(file);
    const error = await expectCode(live.install(await issued(await live.request())), 'UNAVAILABLE');
    expect(error).toBeInstanceOf(MuserError);
    expect(live.current).toBe(current);
    await rm(file, { recursive: true });
    await live.install(await issued(await live.request()));
    expect((await loadIdentity(dir)).tlsCertificatePem).toBe(live.current.tlsCertificatePem);
  });
});
