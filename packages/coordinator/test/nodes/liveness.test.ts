import { createServer as createTcpServer, type AddressInfo, type Socket } from 'node:net';

import { FaultProxy, TestAuthority } from '@muser/testing';
import { describe, expect, it, onTestFinished } from 'vitest';

import { FIRST_STATUS_LIMIT_MS } from '../../src/nodes/producer-watcher.js';
import { SILENCE_LIMIT_MS } from '../../src/nodes/watchdog.js';
import { launchCoordinator } from '../support/coordinator.js';
import { ManualClock } from '../support/manual-clock.js';
import { StandInProducer } from '../support/producer.js';
import { settle, until } from '../support/until.js';

/** Accepts connections and never says anything. */
async function silentServer(): Promise<string> {
  const sockets = new Set<Socket>();
  const server = createTcpServer((socket) => {
    sockets.add(socket);
    socket.on('error', () => undefined);
    socket.resume();
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  onTestFinished(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return `127.0.0.1:${(server.address() as AddressInfo).port}`;
}

/** An address where nothing listens. */
async function deadAddress(): Promise<string> {
  const server = createTcpServer();
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return `127.0.0.1:${port}`;
}

describe('the state of a producer', () => {
  it('follows what the producer says', async () => {
    const { operator } = await launchCoordinator();
    const { nodeId, identity } = await operator.enroll('producer');
    expect(await operator.node(nodeId)).toMatchObject({ state: 'enrolled', lastSeen: null, load: null, model: null });
    const producer = await StandInProducer.listen(identity, { status: { state: 'starting' } });
    await operator.setAddresses(nodeId, [producer.target]);
    await until(
      () => operator.node(nodeId),
      ({ state, lastSeen }) => state === 'enrolled' && lastSeen !== null,
    );
    producer.send({ state: 'ready', queueLength: 3, activeTransfers: 1 });
    expect(await operator.untilState(nodeId, 'healthy')).toMatchObject({
      reason: null,
      load: { queueLength: 3, activeTransfers: 1, prefillTokensPerSecond: 1_000 },
      model: { name: 'muse-nano', fingerprint: expect.stringMatching(/^[0-9a-f]{64}$/) as string },
      backend: 'stand-in',
    });
    producer.send({ state: 'draining' });
    await operator.untilState(nodeId, 'draining');
    producer.send({ state: 'error', reason: 'the worker ended too often' });
    const told = { reason: { code: 'UNAVAILABLE', message: 'the worker ended too often' } };
    expect(await operator.untilState(nodeId, 'error')).toMatchObject(told);
    producer.send({ state: 'ready', reason: '' });
    await operator.untilState(nodeId, 'healthy');
    producer.send({ state: 'error' });
    expect(await operator.untilState(nodeId, 'error')).toMatchObject({
      reason: { message: expect.stringContaining('reports an error') as string },
      load: null,
    });
  });

  // fault: seen-but-unreachable
  it('is unreachable when the producer is gone, and healthy when it is back at the same address', async () => {
    const { operator } = await launchCoordinator();
    const { nodeId, identity } = await operator.enroll('producer');
    const first = await StandInProducer.listen(identity);
    await operator.setAddresses(nodeId, [first.target]);
    await operator.untilState(nodeId, 'healthy');
    await first.close();
    const lost = await operator.untilState(nodeId, 'unreachable');
    expect(lost).toMatchObject({ load: null, reason: { code: 'PEER_UNREACHABLE' }, model: { name: 'muse-nano' } });
    expect(lost.lastSeen).not.toBeNull();
    await StandInProducer.listen(identity, { port: first.port });
    expect(await operator.untilState(nodeId, 'healthy')).toMatchObject({ reason: null });
  });

  // fault: silent-node
  it('stays healthy when its connection breaks and is there again at once', async () => {
    const { operator } = await launchCoordinator();
    const { nodeId, identity } = await operator.enroll('producer');
    const producer = await StandInProducer.listen(identity);
    const proxy = await FaultProxy.listen({ target: { host: '127.0.0.1', port: producer.port } });
    onTestFinished(() => proxy.close());
    await operator.setAddresses(nodeId, [proxy.target]);
    const before = await operator.untilState(nodeId, 'healthy');
    proxy.reset();
    await until(
      () => operator.node(nodeId),
      ({ lastSeen }) => proxy.connectionsAccepted > 1 && lastSeen !== before.lastSeen,
    );
    // It would be another moment had it been unreachable meanwhile.
    expect(await operator.node(nodeId)).toMatchObject({ state: 'healthy', since: before.since });
  });

  it('is unreachable after exactly the limit of silence, and healthy with the next sign of life', async () => {
    expect(SILENCE_LIMIT_MS).toBe(5_000);
    const clock = new ManualClock();
    const { operator } = await launchCoordinator({ clock });
    const { nodeId, identity } = await operator.enroll('producer');
    const producer = await StandInProducer.listen(identity, { now: () => clock.now() });
    await operator.setAddresses(nodeId, [producer.target]);
    await until(
      () => clock.advance(50),
      () => producer.watchers === 1,
    );
    await operator.untilState(nodeId, 'healthy');
    await settle();
    clock.advance(SILENCE_LIMIT_MS - 1);
    await settle();
    expect((await operator.node(nodeId)).state).toBe('healthy');
    // A jump of the wall clock is not a silence.
    clock.jump(24 * 60 * 60_000);
    await settle();
    expect((await operator.node(nodeId)).state).toBe('healthy');
    clock.advance(1);
    const lost = await operator.untilState(nodeId, 'unreachable');
    expect(lost.reason).toMatchObject({ code: 'STALLED' });
    clock.advance(1_000);
    await operator.untilState(nodeId, 'healthy');
  });

  // fault: wrong-interface
  it('is unreachable when something accepts and never answers; the next address is tried', async () => {
    const clock = new ManualClock();
    const { operator } = await launchCoordinator({ clock });
    const silent = await silentServer();
    const { nodeId, identity } = await operator.enroll('producer', { addresses: [silent] });
    await settle();
    expect((await operator.node(nodeId)).state).toBe('enrolled');
    clock.advance(FIRST_STATUS_LIMIT_MS);
    expect(await operator.untilState(nodeId, 'unreachable')).toMatchObject({
      reason: { code: 'STALLED', message: expect.stringContaining(silent) as string },
    });
    const producer = await StandInProducer.listen(identity);
    await operator.setAddresses(nodeId, [silent, await deadAddress(), producer.target]);
    clock.advance(1_000);
    await settle();
    clock.advance(FIRST_STATUS_LIMIT_MS);
    await operator.untilState(nodeId, 'healthy');
    expect((await operator.node(nodeId)).addresses[0]).toBe(silent);
  });

  // fault: seen-but-unreachable
  it('is an error when another node, or one of another coordinator, answers at its address', async () => {
    const { operator } = await launchCoordinator();
    const expected = await operator.enroll('producer', { name: 'expected' });
    const another = await operator.enroll('producer', { name: 'another' });
    const producer = await StandInProducer.listen(another.identity);
    await operator.setAddresses(expected.nodeId, [producer.target]);
    expect((await operator.untilState(expected.nodeId, 'error')).reason).toEqual({
      code: 'PEER_IDENTITY',
      message: expect.stringContaining(another.nodeId) as string,
    });
    expect(producer.watchers).toBe(0);

    const foreign = await (await TestAuthority.create()).identity('producer');
    const stranger = await StandInProducer.listen(foreign);
    await operator.setAddresses(another.nodeId, [stranger.target]);
    expect((await operator.untilState(another.nodeId, 'error')).reason?.code).toBe('PEER_IDENTITY');
    expect(stranger.watchers).toBe(0);

    const decoder = await operator.enroll('decoder');
    const wrongRole = await StandInProducer.listen(decoder.identity);
    await operator.setAddresses(expected.nodeId, [wrongRole.target]);
    const { reason } = await until(
      () => operator.node(expected.nodeId),
      (node) => node.reason?.message.includes(decoder.nodeId) === true,
    );
    expect(reason?.code).toBe('PEER_IDENTITY');
  });

  it('is an error when the producer reports for another node', async () => {
    const { operator } = await launchCoordinator();
    const one = await operator.enroll('producer');
    const other = await operator.enroll('producer');
    const producer = await StandInProducer.listen(one.identity, { status: { nodeId: other.nodeId } });
    await operator.setAddresses(one.nodeId, [producer.target]);
    expect((await operator.untilState(one.nodeId, 'error')).reason?.code).toBe('PEER_IDENTITY');
    expect((await operator.node(other.nodeId)).state).toBe('enrolled');
  });

  // fault: discovery-finds-nothing
  it('is healthy again when a wrong address is mended', async () => {
    const { operator } = await launchCoordinator();
    const another = await StandInProducer.listen((await operator.enroll('producer')).identity);
    const { nodeId, identity } = await operator.enroll('producer', { addresses: [another.target] });
    await operator.untilState(nodeId, 'error');
    const producer = await StandInProducer.listen(identity);
    await operator.setAddresses(nodeId, [producer.target]);
    await operator.untilState(nodeId, 'healthy');
  });

  it('is revoked for good: the coordinator hangs up and does not dial again', async () => {
    const { operator } = await launchCoordinator();
    const { nodeId, identity } = await operator.enroll('producer');
    const producer = await StandInProducer.listen(identity);
    await operator.setAddresses(nodeId, [producer.target]);
    await operator.untilState(nodeId, 'healthy');
    await operator.revoke(nodeId);
    expect((await operator.node(nodeId)).state).toBe('revoked');
    await until(
      () => producer.watchers,
      (watchers) => watchers === 0,
    );
    producer.send();
    expect((await operator.node(nodeId)).state).toBe('revoked');
  });
});
