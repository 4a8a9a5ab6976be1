// Certificates of running nodes are renewed before they end and when an operator says so, over real gRPC and TLS.
import { X509Certificate } from 'node:crypto';
import { connect as connectTls } from 'node:tls';

import { generateSigningKey, signingKeyFromSeed } from '@muser/protocol';
import { LiveIdentity, PeerClient } from '@muser/transport';
import { describe, expect, it, onTestFinished } from 'vitest';

import { CERTIFICATE_LIFETIME_MS } from '../../src/ca/authority.js';
import { launchCoordinator, type TestCoordinator } from '../support/coordinator.js';
import { StandInDecoder } from '../support/decoder.js';
import { ManualClock } from '../support/manual-clock.js';
import { StandInProducer } from '../support/producer.js';
import { settle, until } from '../support/until.js';

const DAY_MS = 24 * 60 * 60_000;
const CHECK_MS = 60_000;

async function withProducer({ operator }: TestCoordinator) {
  const { nodeId, identity, identityFolder: folder } = await operator.enroll('producer');
  const producer = await StandInProducer.listen(identity, { folder });
  await operator.setAddresses(nodeId, [producer.target]);
  await operator.untilState(nodeId, 'healthy');
  return { nodeId, producer };
}

const serialOf = (certificate: Uint8Array): string => new X509Certificate(certificate).serialNumber;

/** Certificates that are issued so long after others make those due to be renewed. */
const DUE_MS = (2 * CERTIFICATE_LIFETIME_MS) / 3 + DAY_MS;
/** Begins so long ago that certificates which are issued now are still good by the real clock. */
const past = (): ManualClock => new ManualClock(Date.now() - DUE_MS);

const rotate = ({ operator }: TestCoordinator, nodeId: string, body: object = {}) =>
  operator.call('POST', `/api/nodes/${nodeId}/rotate`, body);

/** An order to a decoder that has heard of it and does nothing. */
async function waitingRotation() {
  const coordinator = await launchCoordinator();
  const { nodeId, identity } = await coordinator.operator.enroll('decoder');
  const stand = new StandInDecoder(identity, coordinator.grpc);
  await stand.list();
  const waiting = rotate(coordinator, nodeId);
  await stand.list(({ renewOrder }) => renewOrder !== '');
  return { coordinator, nodeId, waiting };
}

/** A call to the coordinator with a decoder's identity. */
function dial(coordinator: TestCoordinator, live: LiveIdentity): PeerClient {
  const expected = { role: 'coordinator', nodeId: coordinator.nodeId } as const;
  const client = PeerClient.connect({ identity: live.current, target: coordinator.grpc, expect: expected });
  onTestFinished(() => client.close());
  return client;
}

describe('an order of the operator', () => {
  it('gives a producer a new certificate, which it has when the order is answered', async () => {
    const coordinator = await launchCoordinator();
    const { nodeId, producer } = await withProducer(coordinator);
    expect(await rotate(coordinator, nodeId)).toMatchObject({ status: 200, body: { node: { nodeId } } });
    expect(producer.certificates).toHaveLength(1);
    await rotate(coordinator, nodeId);
    const serials = producer.certificates.map(({ certificate }) => serialOf(certificate));
    expect(new Set(serials).size).toBe(2);
    expect((await coordinator.operator.node(nodeId)).state).toBe('healthy');
  });

  it('given twice at once renews a producer once, for both who gave it', async () => {
    const coordinator = await launchCoordinator();
    const { nodeId, producer } = await withProducer(coordinator);
    const [one, other] = await Promise.all([rotate(coordinator, nodeId), rotate(coordinator, nodeId)]);
    expect([one, other]).toMatchObject([{ status: 200 }, { status: 200 }]);
    expect(producer.certificates).toHaveLength(1);
  });

  it('reaches a decoder with its list, once, and is done when the decoder has asked', async () => {
    const coordinator = await launchCoordinator();
    const { nodeId, identity, identityFolder } = await coordinator.operator.enroll('decoder');
    const live = new LiveIdentity(identityFolder, identity);
    const stand = new StandInDecoder(identity, coordinator.grpc);
    expect((await stand.list()).renewOrder).toBe('');
    const done = rotate(coordinator, nodeId);
    expect((await stand.list(({ renewOrder }) => renewOrder !== '')).renewOrder).not.toBe('');
    const { certificate } = await dial(coordinator, live).renewCertificate(await live.request());
    await live.install(certificate);
    expect(await done).toMatchObject({ status: 200 });
    await stand.list(({ renewOrder }) => renewOrder === '');
    // It is let in with the new one.
    await new StandInDecoder(live.current, coordinator.grpc).list();
  });

  it('given twice, reaches both who gave it, also when one of them did not wait', async () => {
    const coordinator = await launchCoordinator();
    const { nodeId, identity, identityFolder } = await coordinator.operator.enroll('decoder');
    const live = new LiveIdentity(identityFolder, identity);
    const stand = new StandInDecoder(identity, coordinator.grpc);
    await stand.list();
    const patient = rotate(coordinator, nodeId, { deadlineMs: 5_000 });
    await stand.list(({ renewOrder }) => renewOrder !== '');
    const hasty = await rotate(coordinator, nodeId, { deadlineMs: 20 });
    expect(hasty).toMatchObject({ body: { error: { code: 'DEADLINE_EXCEEDED' } } });
    const { certificate } = await dial(coordinator, live).renewCertificate(await live.request());
    await live.install(certificate);
    expect(await patient).toMatchObject({ status: 200 });
    await stand.list(({ renewOrder }) => renewOrder === '');
  });

  it('that waits when the coordinator closes is answered', async () => {
    const { coordinator, waiting } = await waitingRotation();
    await Promise.all([
      coordinator.close(),
      expect(waiting).resolves.toMatchObject({ body: { error: { code: 'UNAVAILABLE' } } }),
    ]);
  });

  it('that waits for a decoder ends when that is revoked', async () => {
    const { coordinator, nodeId, waiting } = await waitingRotation();
    await coordinator.operator.revoke(nodeId);
    expect(await waiting).toMatchObject({ body: { error: { code: 'NODE_REVOKED' } } });
  });

  it('says what is wrong', async () => {
    const coordinator = await launchCoordinator();
    const decoder = await coordinator.operator.enroll('decoder');
    const away = await rotate(coordinator, decoder.nodeId);
    expect(away).toMatchObject({ body: { error: { code: 'PEER_UNREACHABLE' } } });
    const stand = new StandInDecoder(decoder.identity, coordinator.grpc);
    await stand.list();
    const late = await rotate(coordinator, decoder.nodeId, { deadlineMs: 20 });
    expect(late).toMatchObject({ body: { error: { code: 'DEADLINE_EXCEEDED' } } });
    const silent = await coordinator.operator.enroll('producer');
    const nowhere = await rotate(coordinator, silent.nodeId);
    expect(nowhere).toMatchObject({ body: { error: { code: 'PEER_UNREACHABLE' } } });
    await coordinator.operator.revoke(silent.nodeId);
    expect(await rotate(coordinator, silent.nodeId)).toMatchObject({ status: 404 });
  });
});

describe('a request for a certificate', () => {
  it('is answered for the node itself alone, and never for a revoked one', async () => {
    const clock = past();
    const coordinator = await launchCoordinator({ clock });
    const [one, other] = [await coordinator.operator.enroll('decoder'), await coordinator.operator.enroll('decoder')];
    clock.jump(DUE_MS);
    const live = new LiveIdentity(one.identityFolder, one.identity);
    const foreign = new LiveIdentity(other.identityFolder, other.identity);
    const client = dial(coordinator, live);
    await expect(client.renewCertificate(await foreign.request())).rejects.toMatchObject({ code: 'ENROLL_REFUSED' });
    const request = await live.request();
    const proof = signingKeyFromSeed(generateSigningKey().seed).sign('muser/1/csr', request.csr);
    await expect(client.renewCertificate({ ...request, proof })).rejects.toMatchObject({ code: 'ENROLL_REFUSED' });
    await coordinator.operator.revoke(one.nodeId);
    await expect(dial(coordinator, live).renewCertificate(request)).rejects.toMatchObject({ code: 'NODE_REVOKED' });
  });

  it('is refused without an order, and twice within a minute', async () => {
    const clock = past();
    const coordinator = await launchCoordinator({ clock });
    const { identity, identityFolder } = await coordinator.operator.enroll('decoder');
    const live = new LiveIdentity(identityFolder, identity);
    const client = dial(coordinator, live);
    const renew = async () => client.renewCertificate(await live.request());
    await expect(renew()).rejects.toMatchObject({ code: 'PERMISSION_DENIED' });
    clock.jump(DUE_MS);
    await renew();
    await expect(renew()).rejects.toMatchObject({ code: 'RESOURCE_EXHAUSTED' });
    clock.jump(60_000);
    await renew();
  });
});

describe('by themselves', () => {
  /** Lets time pass in small steps, in which the producer gives signs of life, until the promise has settled. */
  async function whileTimePasses<T>(clock: ManualClock, promise: Promise<T>, live = (): void => undefined): Promise<T> {
    const settled = promise.then(
      () => true,
      () => true,
    );
    for (;;) {
      clock.advance(2_000);
      live();
      const isDone = await Promise.race([settled, settle().then(() => false)]);
      if (isDone) return promise;
    }
  }

  it('producers and the coordinator get new certificates at two thirds of their life, not before', async () => {
    const clock = past();
    const coordinator = await launchCoordinator({ clock });
    const { operator } = coordinator;
    const { nodeId, identity, identityFolder: folder } = await operator.enroll('producer');
    const producer = await StandInProducer.listen(identity, { folder, now: () => clock.now() });
    await operator.setAddresses(nodeId, [producer.target]);
    const alive = (): void => producer.send();
    await whileTimePasses(clock, operator.untilState(nodeId, 'healthy'), alive);
    const { certificateExpires } = await operator.node(nodeId);
    const endMs = Date.parse(certificateExpires);
    // Two checks before the time and one after it.
    clock.jump(endMs - CERTIFICATE_LIFETIME_MS / 3 - 2 * CHECK_MS - clock.now());
    const renewed = until(
      () => operator.node(nodeId),
      (node) => node.certificateExpires !== certificateExpires,
    );
    const { certificateExpires: later } = await whileTimePasses(clock, renewed, alive);
    expect(producer.certificates).toHaveLength(1);
    expect(clock.now()).toBeGreaterThanOrEqual(endMs - CERTIFICATE_LIFETIME_MS / 3);
    expect(Date.parse(later)).toBeGreaterThan(endMs);
    // The coordinator's own one is as old.
    const begins = await new Promise<string>((resolve, reject) => {
      const { tlsKeyPem: key, tlsCertificatePem: cert, caPem: ca } = identity;
      const [host, port] = coordinator.grpc.split(':');
      const options = { host, port: Number(port), key, cert, ca, ALPNProtocols: ['h2'] };
      const socket = connectTls({ ...options, checkServerIdentity: () => undefined }, () => {
        resolve(socket.getPeerX509Certificate()?.validFrom ?? '');
        socket.destroy();
      }).on('error', reject);
    });
    expect(Date.parse(begins)).toBeGreaterThan(endMs - CERTIFICATE_LIFETIME_MS / 2);
  });

  it('decoders are told at two thirds of the life of the certificate that they came with', async () => {
    const clock = past();
    const coordinator = await launchCoordinator({ clock });
    const { identity, identityFolder } = await coordinator.operator.enroll('decoder');
    const live = new LiveIdentity(identityFolder, identity);
    const stand = new StandInDecoder(identity, coordinator.grpc);
    expect((await stand.list()).renewOrder).toBe('');
    clock.jump((2 * CERTIFICATE_LIFETIME_MS) / 3 + CHECK_MS);
    const told = stand.list((list) => list.renewOrder !== '');
    const { renewOrder } = await whileTimePasses(clock, told);
    expect(renewOrder).toBe(live.serial);
    const { certificate } = await dial(coordinator, live).renewCertificate(await live.request());
    await live.install(certificate);
    expect((await new StandInDecoder(live.current, coordinator.grpc).list()).renewOrder).toBe('');
  });

  it('a stream ends with the certificate that opened it, and so the next order is for a newer one', async () => {
    const clock = past();
    const coordinator = await launchCoordinator({ clock });
    const { identity } = await coordinator.operator.enroll('decoder');
    const stand = new StandInDecoder(identity, coordinator.grpc);
    await stand.list();
    clock.jump(CERTIFICATE_LIFETIME_MS + DAY_MS);
    // The decoder dials anew, with the certificate that it has got meanwhile.
    expect((await whileTimePasses(clock, stand.end())).code).toBe('CERTIFICATE_INVALID');
  });
});
