import { checkTicket, openTicket, verifyingKey, type ProducerList } from '@muser/protocol';
import { describe, expect, it } from 'vitest';

import { TICKET_RENEWAL_MS } from '../../src/placement/ticket-book.js';
import { launchCoordinator, type TestCoordinator } from '../support/coordinator.js';
import { has, lacks, StandInDecoder } from '../support/decoder.js';
import { ManualClock } from '../support/manual-clock.js';
import { digest, StandInProducer } from '../support/producer.js';
import { settle, until } from '../support/until.js';

async function withProducer(coordinator: TestCoordinator, name = 'spark', now = Date.now) {
  const { operator } = coordinator;
  const { nodeId, identity } = await operator.enroll('producer', { name });
  const producer = await StandInProducer.listen(identity, { now });
  await operator.setAddresses(nodeId, [producer.target]);
  await operator.untilState(nodeId, 'healthy');
  return { nodeId, identity, producer };
}

/** Lets time pass in small steps until the promise has settled. */
async function whileTimePasses<T>(
  clock: ManualClock,
  promise: Promise<T>,
  eachStep = (): void => undefined,
): Promise<T> {
  let isSettled = false;
  const settled = promise.finally(() => (isSettled = true));
  await until(
    async () => {
      clock.advance(100);
      eachStep();
      await settle();
    },
    () => isSettled,
  );
  return settled;
}

const ticketOf = ({ producers }: ProducerList): Uint8Array => producers[0]?.ticket ?? new Uint8Array();

describe('placement', () => {
  it('gives a decoder the healthy producers of its model, each with a ticket that the producer accepts', async () => {
    const coordinator = await launchCoordinator();
    const { nodeId, identity, producer } = await withProducer(coordinator);
    const decoder = await coordinator.operator.enroll('decoder');
    const before = Date.now();
    const stand = new StandInDecoder(decoder.identity, coordinator.grpc, { coordinatorId: coordinator.nodeId });
    const list = await stand.list(has(nodeId));
    expect(list.coordinatorTimeMs).toBeGreaterThanOrEqual(before);
    const [entry] = list.producers;
    expect(entry).toMatchObject({
      name: 'spark',
      addresses: [producer.target],
      state: 'ready',
      maxPromptTokens: 4_096,
      prefillTokensPerSecond: 1_000,
    });
    expect(entry?.signingPublicKey).toEqual(identity.signingKey.publicKey);
    // Exactly what a producer does with it, with the key that it got when it was enrolled.
    const ticket = openTicket(ticketOf(list), verifyingKey(identity.coordinatorPublicKey));
    expect(() =>
      checkTicket(ticket, {
        decoderId: decoder.nodeId,
        producerId: nodeId,
        fingerprint: digest('fingerprint'),
        producerModel: digest('producer weights'),
        decoderModel: digest('decoder weights'),
        promptTokens: 4_096,
        nowMs: Date.now(),
        clockSkewMs: 0,
      }),
    ).not.toThrow();
    expect(ticket.expiresAtMs).toBe(entry?.ticketExpiresAtMs);
    expect((await coordinator.operator.node(decoder.nodeId)).state).toBe('healthy');
  });

  it('pairs only models with the same fingerprint', async () => {
    const coordinator = await launchCoordinator();
    const { producer, nodeId } = await withProducer(coordinator);
    const { identity } = await coordinator.operator.enroll('decoder');
    const fingerprint = digest('another model');
    const other = new StandInDecoder(identity, coordinator.grpc, { fingerprint });
    const absent = { nodeId, name: 'spark', reason: 'other_model' };
    expect(await other.list()).toMatchObject({ producers: [], unavailable: [absent] });
    producer.send({ model: { fingerprint, modelDigest: digest('other weights'), name: 'other' } });
    const list = await other.list(has(nodeId));
    const ticket = openTicket(ticketOf(list), verifyingKey(identity.coordinatorPublicKey));
    expect(Buffer.from(ticket.producerModel)).toEqual(digest('other weights'));
    expect(Buffer.from(ticket.fingerprint)).toEqual(fingerprint);
  });

  it('tells of every change: load, state, addresses, loss and return', async () => {
    const coordinator = await launchCoordinator();
    const { producer, nodeId, identity } = await withProducer(coordinator);
    const decoder = await coordinator.operator.enroll('decoder');
    const stand = new StandInDecoder(decoder.identity, coordinator.grpc);
    await stand.list(has(nodeId));
    producer.send({ queueLength: 7 });
    await stand.list(({ producers }) => producers[0]?.queueLength === 7);
    for (const state of ['draining', 'paused', 'starting'] as const) {
      producer.send({ state });
      await stand.list(({ producers }) => producers[0]?.state === state);
    }
    producer.send({ state: 'error' });
    await stand.list(lacks(nodeId, 'error'));
    producer.send({ state: 'ready' });
    await stand.list(({ producers }) => producers[0]?.state === 'ready');
    await coordinator.operator.setAddresses(nodeId, [producer.target, '127.0.0.1:9']);
    await stand.list(({ producers }) => producers[0]?.addresses.length === 2);
    await producer.close();
    await stand.list(lacks(nodeId, 'unreachable'));
    await StandInProducer.listen(identity, { port: producer.port });
    await stand.list(has(nodeId));
    const second = await withProducer(coordinator, 'second');
    await stand.list(has(nodeId, second.nodeId));
  });

  // promise: A coordinator that is started anew names every enrolled producer in its first list, so that transfers there go on.
  it('names the producers that it has not heard since its start, without a ticket', async () => {
    const first = await launchCoordinator();
    const { nodeId } = await withProducer(first);
    const revoked = await withProducer(first, 'revoked');
    await first.operator.revoke(revoked.nodeId);
    const { identity } = await first.operator.enroll('decoder');
    // Without an address it is not heard for as long as it takes.
    await first.operator.setAddresses(nodeId, []);
    await first.close();
    const second = await launchCoordinator({ stateDir: first.stateDir });
    const list = await new StandInDecoder(identity, second.grpc).list();
    expect(list).toMatchObject({ producers: [], unavailable: [{ nodeId, name: 'spark', reason: 'not_heard' }] });
  });

  it('leaves out a producer that cannot take any prompt', async () => {
    const coordinator = await launchCoordinator();
    const { producer, nodeId } = await withProducer(coordinator);
    const stand = new StandInDecoder((await coordinator.operator.enroll('decoder')).identity, coordinator.grpc);
    producer.send({ maxPromptTokens: 1 });
    await stand.list(lacks(nodeId, 'error'));
  });

  it('sends the list again at least every two seconds when nothing changes', async () => {
    const clock = new ManualClock();
    const coordinator = await launchCoordinator({ clock });
    const { identity } = await coordinator.operator.enroll('decoder');
    const stand = new StandInDecoder(identity, coordinator.grpc);
    let last = (await stand.list()).coordinatorTimeMs;
    for (let beat = 0; beat < 5; beat += 1) {
      const { coordinatorTimeMs } = await whileTimePasses(clock, stand.list());
      expect(coordinatorTimeMs - last).toBeGreaterThan(0);
      expect(coordinatorTimeMs - last).toBeLessThanOrEqual(2_000);
      last = coordinatorTimeMs;
    }
  });

  it('renews tickets at a third of their life', async () => {
    const clock = new ManualClock();
    const coordinator = await launchCoordinator({ clock });
    const { producer, nodeId } = await withProducer(coordinator, 'spark', () => clock.now());
    const { identity } = await coordinator.operator.enroll('decoder');
    const stand = new StandInDecoder(identity, coordinator.grpc);
    const listWhen = (holds: (timeMs: number) => boolean): Promise<ProducerList> =>
      whileTimePasses(
        clock,
        stand.list((list) => has(nodeId)(list) && holds(list.coordinatorTimeMs)),
        () => producer.send(),
      );
    const coordinatorKey = verifyingKey(identity.coordinatorPublicKey);
    const open = (list: ProducerList) => openTicket(ticketOf(list), coordinatorKey);

    const first = await stand.list(has(nodeId));
    const { issuedAtMs, expiresAtMs } = open(first);
    const second = await listWhen((timeMs) => timeMs >= first.coordinatorTimeMs + 3_000);
    expect(ticketOf(second)).toEqual(ticketOf(first));
    clock.jump(TICKET_RENEWAL_MS);
    const renewed = await listWhen((timeMs) => timeMs >= issuedAtMs + TICKET_RENEWAL_MS);
    expect(open(renewed).issuedAtMs).toBeGreaterThanOrEqual(issuedAtMs + TICKET_RENEWAL_MS);
    // The old one is still good: no request waits for the coordinator.
    expect(expiresAtMs - renewed.coordinatorTimeMs).toBeGreaterThan(TICKET_RENEWAL_MS);
    // A clock that is set back must not leave a ticket from the future in use.
    clock.jump(-2 * TICKET_RENEWAL_MS);
    const again = await listWhen((timeMs) => timeMs < issuedAtMs);
    expect(open(again).issuedAtMs).toBeLessThan(issuedAtMs);
  });

  // promise: A revoked decoder is dropped by the coordinator at once, and let in no more.
  it('drops a revoked decoder at once and lets it in no more', async () => {
    const coordinator = await launchCoordinator();
    const { operator } = coordinator;
    const { nodeId, identity } = await operator.enroll('decoder');
    const stand = new StandInDecoder(identity, coordinator.grpc);
    await stand.list();
    const end = stand.end();
    await operator.revoke(nodeId);
    expect(['NODE_REVOKED', 'PEER_UNREACHABLE']).toContain((await end).code);
    expect(await new StandInDecoder(identity, coordinator.grpc).end()).toMatchObject({
      code: 'NODE_REVOKED',
      message: expect.stringContaining('revoked') as string,
    });
    expect((await operator.node(nodeId)).state).toBe('revoked');
  });

  // promise: A revoked producer is taken off the list of every decoder at once.
  it('takes a revoked producer off the list at once', async () => {
    const coordinator = await launchCoordinator();
    const { nodeId } = await withProducer(coordinator);
    const stand = new StandInDecoder((await coordinator.operator.enroll('decoder')).identity, coordinator.grpc);
    await stand.list(has(nodeId));
    await coordinator.operator.revoke(nodeId);
    await stand.list(({ producers, unavailable }) => producers.length + unavailable.length === 0);
  });

  it('is for decoders that are enrolled here only', async () => {
    const coordinator = await launchCoordinator();
    const other = await launchCoordinator();
    const { identity } = await coordinator.operator.enroll('producer');
    expect((await new StandInDecoder(identity, coordinator.grpc).end()).code).toBe('PERMISSION_DENIED');
    const foreign = await other.operator.enroll('decoder');
    expect(['PEER_IDENTITY', 'PEER_UNREACHABLE']).toContain(
      (await new StandInDecoder(foreign.identity, coordinator.grpc).end()).code,
    );
  });

  it('shows whether a decoder is connected, and bounds its streams', async () => {
    const coordinator = await launchCoordinator();
    const { operator, grpc } = coordinator;
    const { nodeId, identity } = await operator.enroll('decoder');
    expect((await operator.node(nodeId)).state).toBe('enrolled');
    const stands = Array.from({ length: 8 }, () => new StandInDecoder(identity, grpc));
    await Promise.all(stands.map((stand) => stand.list()));
    expect((await operator.node(nodeId)).state).toBe('healthy');
    expect((await new StandInDecoder(identity, grpc).end()).code).toBe('RESOURCE_EXHAUSTED');
    await Promise.all(stands.map((stand) => stand.close()));
    await operator.untilState(nodeId, 'unreachable');
    await new StandInDecoder(identity, grpc).list();
    expect((await operator.node(nodeId)).state).toBe('healthy');
  });

  it('tells its decoders that it closes', async () => {
    const coordinator = await launchCoordinator();
    const stand = new StandInDecoder((await coordinator.operator.enroll('decoder')).identity, coordinator.grpc);
    await stand.list();
    const end = stand.end();
    await coordinator.close();
    expect((await end).code).toBe('UNAVAILABLE');
  });
});
