// What the network may do to a transfer, and what becomes of the answer. A producer's own faults are in fallback.test.ts.
import { FaultProxy, type ByteRange, type Faults } from '@muser/testing';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { ask } from '../support/client.js';
import { closedPort } from '../support/closed-port.js';
import { CHUNK_TOKENS, Rig } from '../support/rig.js';
import { EndStream } from '../support/stand-in-producer.js';

let rig: Rig;
beforeAll(async () => {
  rig = await Rig.start();
});
afterEach(() => rig.settled());
afterAll(() => rig?.close());

describe('the way to a producer', () => {
  // fault: wrong-interface
  test('the second address is used when the first does not answer', async () => {
    await rig.offer({ addresses: [`127.0.0.1:${await closedPort()}`, rig.producer.target] });
    const { prompt, value } = rig.document(1, 900);
    const { text, muser } = await ask(rig.url, prompt, { prefill: 'remote' });
    expect(text).toContain(value);
    expect(muser).toMatchObject({ prefill: 'remote', fallback: null });
  });

  test('requests that leave a dead address together do not break each other', async () => {
    await rig.offer({ addresses: [`127.0.0.1:${await closedPort()}`, rig.producer.target] });
    const documents = [rig.document(8, 900), rig.document(9, 900)];
    const answers = await Promise.all(documents.map(({ prompt }) => ask(rig.url, prompt, { prefill: 'remote' })));
    for (const [index, { text, muser }] of answers.entries()) {
      expect(text).toContain(documents[index]?.value);
      expect(muser).toMatchObject({ prefill: 'remote', fallback: null });
    }
  });

  const around = (at: number): ByteRange => ({ at, count: 20_000 });
  const ways: [string, (at: number) => Faults][] = [
    ['cut', (at) => ({ cutAtByte: at })],
    ['reset', (at) => ({ resetAtByte: at })],
    ['lost on our side alone', (at) => ({ halfOpenAtByte: at })],
    ['changed', (at) => ({ corruptByte: at })],
    ['robbed of some bytes', (at) => ({ drop: around(at) })],
    ['fed some bytes twice', (at) => ({ replay: around(at) })],
  ];
  // The first chunk of a transfer has 2 MiB; the first bytes of a connection are its handshake.
  const moments: [string, number, number | null][] = [
    ['before Begin', 600, null],
    ['in the first chunk', 1_500_000, 0],
    ['in the second chunk', 2_500_000, CHUNK_TOKENS],
  ];
  const cells = ways.flatMap(([how, faultsAt]) =>
    moments.map(([when, at, from]): [string, string, number | null, Faults] => [how, when, from, faultsAt(at)]),
  );

  // promise: A link that drops in the middle of a transfer and returns is used again: the same producer sends what is missing.
  test.each(cells)('a connection that is %s %s goes on from %s', async (how, _when, from, faults) => {
    const [host = '', port = ''] = rig.producer.target.split(':');
    const proxy = await FaultProxy.listen({
      target: { host, port: Number(port) },
      faults: (index) => (index === 0 ? { toClient: faults } : {}),
    });
    try {
      await rig.offer({ addresses: [proxy.target] });
      const { prompt, value } = rig.document(2, 1_700);
      const { text, muser } = await ask(rig.url, prompt, { prefill: 'remote' });
      expect(text).toContain(value);
      expect(muser.attempts[0]?.code).toBe('PEER_UNREACHABLE');
      // Bytes that come twice follow the right ones: Begin may have been among those.
      if (from === null && !(how === 'fed some bytes twice' && muser.prefill === 'remote')) {
        // Nobody knows whether there ever was a producer: it is not waited for.
        expect(muser).toMatchObject({ prefill: 'local', fallback: { code: 'PEER_UNREACHABLE' } });
        return;
      }
      expect(muser).toMatchObject({ prefill: 'remote', fallback: null });
      expect(muser.attempts.map(({ code }) => code)).toEqual(['PEER_UNREACHABLE', null]);
      // A reset may throw away what has arrived and was not read.
      expect(how === 'reset' ? [0, from] : [from ?? 0]).toContain(muser.attempts[1]?.from);
      expect(rig.producer.requests.at(-1)?.heldTokens).toBe(muser.attempts[1]?.from);
    } finally {
      await proxy.close();
    }
  });

  // fault: silent-node
  test('a frozen connection is left, and the producer works again afterwards', async () => {
    const impatient = await Rig.start({ stallTimeoutMs: 3_000 });
    const [host = '', port = ''] = impatient.producer.target.split(':');
    const proxy = await FaultProxy.listen({
      target: { host, port: Number(port) },
      faults: () => ({ toClient: { stallAtByte: 50_000 } }),
    });
    try {
      await impatient.offer({ addresses: [proxy.target] });
      const { prompt, value } = impatient.document(3, 1_700);
      const stalled = await ask(impatient.url, prompt, { prefill: 'remote' });
      expect(stalled.text).toContain(value);
      expect(stalled.muser.fallback?.code).toBe('STALLED');
      await impatient.offer();
      const again = await ask(impatient.url, prompt, { prefill: 'remote' });
      expect(again).toMatchObject({ text: stalled.text, muser: { prefill: 'remote', fallback: null } });
    } finally {
      await proxy.close();
      await impatient.close();
    }
  });
});

describe('without a producer', () => {
  test('remote falls back, auto is local', async () => {
    rig.coordinator.publish([]);
    await rig.until(async () => (await rig.health()).producers.length === 0);
    const { prompt, value } = rig.document(4, 500);
    const remote = await ask(rig.url, prompt, { prefill: 'remote' });
    expect(remote.text).toContain(value);
    expect(remote.muser).toMatchObject({ prefill: 'local', fallback: { code: 'NO_PRODUCER' }, producer: null });
    const auto = await ask(rig.url, prompt, { prefill: 'auto' });
    expect(auto.muser).toMatchObject({ prefill: 'local', fallback: null });
  });
});

// promise: After a pause one request finds out whether a producer that failed works again; the others do not wait for it.
// fault: failed-for-ever
test('of many requests one tries a producer that failed', async () => {
  await rig.offer({}, { beforeBegin: () => Promise.reject(new EndStream()) });
  const { prompt } = rig.document(11, 200);
  const question = (): ReturnType<typeof ask> => ask(rig.url, prompt, { prefill: 'remote' }, { max_tokens: 1 });
  expect((await question()).muser.fallback?.code).toBe('TRANSFER_TRUNCATED');

  let letProbeGoOn = (): void => undefined;
  let probe: ReturnType<typeof ask> | null = null;
  const probing = new Promise<null>((resolve) => {
    const beforeBegin = async (): Promise<void> => {
      resolve(null);
      await new Promise<void>((goOn) => (letProbeGoOn = goOn));
    };
    rig.producer.misbehave({ beforeBegin });
  });
  // Until the pause is over every request is prefilled here.
  for (let answered: object | null = {}; answered !== null;) {
    probe = question();
    answered = await Promise.race([probe, probing]);
  }
  const calls = rig.producer.calls();
  const others = await Promise.all([question(), question(), question()]);
  for (const { muser } of others) {
    expect(muser.fallback).toMatchObject({
      code: 'NO_PRODUCER',
      message: expect.stringContaining('being tried again by another request') as string,
    });
  }
  expect(rig.producer.calls()).toBe(calls);
  rig.producer.misbehave({});
  letProbeGoOn();
  expect((await probe)?.muser.prefill).toBe('remote');
  expect((await question()).muser.prefill).toBe('remote');
});

test('a coordinator that is gone is not needed, and is found again', async () => {
  await rig.offer();
  await rig.coordinator.close();
  await rig.until(async () => (await rig.health()).coordinator === 'absent');
  const { prompt, value } = rig.document(6, 900);
  const { text, muser } = await ask(rig.url, prompt, { prefill: 'remote' });
  expect(text).toContain(value);
  expect(muser).toMatchObject({ prefill: 'remote', fallback: null });
  await rig.restartCoordinator();
  await rig.until(async () => (await rig.health()).coordinator === 'connected');
});

test('a coordinator that only keeps its stream open is away, and is not needed', async () => {
  await rig.offer();
  rig.coordinator.fallSilent();
  await rig.until(async () => (await rig.health()).coordinator === 'absent');
  const { prompt, value } = rig.document(10, 300);
  const { text, muser } = await ask(rig.url, prompt, { prefill: 'remote' });
  expect(text).toContain(value);
  expect(muser).toMatchObject({ prefill: 'remote', fallback: null });
  await rig.coordinator.close();
  await rig.restartCoordinator();
});
