// Two producers, or one whose link comes back: who goes on, from which token, and what is sent again (nothing). Every way to
// fail at every moment is in failover.slow.test.ts.
import { FaultProxy } from '@muser/testing';
import { MuserError } from '@muser/protocol';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { ask } from '../support/client.js';
import { CHUNK_TOKENS, Rig } from '../support/rig.js';
import { EndStream, type Misbehaviour } from '../support/stand-in-producer.js';
import {
  at,
  endsAt,
  expectNothingTwice,
  expectSecondWentOn,
  hang,
  SHARDS_PER_CHUNK,
  TwoProducers,
} from '../support/two-producers.js';

let two: TwoProducers;
beforeAll(async () => {
  two = await TwoProducers.start();
});
afterEach(() => two.settled());
afterAll(() => two?.close());

describe('a second producer', () => {
  // promise: When a producer fails in the middle, another one goes on where it was and sends only what is missing.
  test('goes on from the last resume point of the first', async () => {
    await two.offer(endsAt(2 * SHARDS_PER_CHUNK));
    const { prompt, value } = two.rig.document(1, 1_700);
    const { text, muser } = await ask(two.rig.url, prompt, { prefill: 'remote' });
    expect(text).toContain(value);
    expectSecondWentOn(two, muser, 'TRANSFER_TRUNCATED', 2 * CHUNK_TOKENS);
  });

  test('goes on when the first one dies, and is starting again', async () => {
    const { rig } = two;
    let calls = 0;
    await two.offer({
      ...at(2 * SHARDS_PER_CHUNK, async () => {
        two.disconnect();
        throw new EndStream();
      }),
      beforeBegin: async () => {
        if (++calls > 1) throw new MuserError('UNAVAILABLE', 'the model is being loaded');
      },
    });
    const { prompt, value } = rig.document(2, 1_700);
    const { text, muser } = await ask(rig.url, prompt, { prefill: 'remote' });
    expect(text).toContain(value);
    expect(muser.attempts.map(({ producer, code }) => [producer.name, code])).toEqual([
      ['stand-in', 'PEER_UNREACHABLE'],
      ['stand-in', 'UNAVAILABLE'],
      ['second', null],
    ]);
    expectNothingTwice(muser);
  });

  test('fails, too: the decoder goes on from its last resume point', async () => {
    await two.offer(endsAt(SHARDS_PER_CHUNK), endsAt(SHARDS_PER_CHUNK));
    const { prompt, value } = two.rig.document(3, 1_700);
    const { text, muser } = await ask(two.rig.url, prompt, { prefill: 'remote' });
    expect(text).toContain(value);
    expect(muser).toMatchObject({ prefill: 'resumed', fallback: { code: 'TRANSFER_TRUNCATED' } });
    expect(muser.attempts.map(({ from, to }) => [from, to])).toEqual([
      [0, CHUNK_TOKENS],
      [CHUNK_TOKENS, 2 * CHUNK_TOKENS],
    ]);
    expectNothingTwice(muser);
  });

  test('refuses like the first: all is local, and both are named', async () => {
    const refuses: Misbehaviour = { beforeBegin: () => Promise.reject(new MuserError('QUEUE_FULL', 'full')) };
    await two.offer(refuses, refuses);
    const { prompt, value } = two.rig.document(4, 300);
    const { text, muser } = await ask(two.rig.url, prompt, { prefill: 'remote' });
    expect(text).toContain(value);
    expect(muser).toMatchObject({ prefill: 'local', fallback: { code: 'QUEUE_FULL' }, kvBytes: 0 });
    expect(muser.attempts.map(({ producer }) => producer.name)).toEqual(['stand-in', 'second']);
  });
});

// promise: A link that is down for a while in the middle of a transfer is waited for, and the transfer goes on where it was.
test('a link that is down for some connections is used again when it is up', async () => {
  const { rig } = two;
  const [host = '', port = ''] = rig.producer.target.split(':');
  const proxy = await FaultProxy.listen({
    target: { host, port: Number(port) },
    faults: (index) => ({ toClient: index === 0 ? { cutAtByte: 2_500_000 } : index < 3 ? { cutAtByte: 0 } : {} }),
  });
  try {
    await rig.offer({ addresses: [proxy.target] });
    const { prompt, value } = rig.document(5, 1_700);
    const { text, muser } = await ask(rig.url, prompt, { prefill: 'remote' });
    expect(text).toContain(value);
    expect(muser).toMatchObject({ prefill: 'remote', fallback: null });
    expect(muser.attempts[0]).toMatchObject({ to: CHUNK_TOKENS, code: 'PEER_UNREACHABLE' });
    // gRPC itself may have used up one of the connections.
    expect(muser.attempts.length).toBeGreaterThan(2);
    expect(rig.producer.requests.at(-1)?.heldTokens).toBe(CHUNK_TOKENS);
    expectNothingTwice(muser);
  } finally {
    await proxy.close();
  }
});

test('a client that leaves while a link is down ends the request', async () => {
  const { rig } = two;
  const leaving = new AbortController();
  const how = at(SHARDS_PER_CHUNK, async () => {
    two.disconnect();
    leaving.abort();
    throw new EndStream();
  });
  await rig.offer({}, how);
  const calls = rig.producer.calls();
  const { prompt } = rig.document(6, 1_200);
  await expect(ask(rig.url, prompt, { prefill: 'remote' }, {}, leaving.signal)).rejects.toThrow();
  await rig.settled();
  expect(rig.producer.calls()).toBe(calls + 1);
});

// promise: With --prefill auto a producer that falls behind is left long before it would time out.
test.each<[string, Misbehaviour]>([
  ['does not answer', { beforeBegin: (call) => hang(call.signal) }],
  [
    'stops after its first chunk',
    { beforeChunk: async (index, call) => (index === 1 ? hang(call.signal) : undefined) },
  ],
])('in mode auto a producer that %s is left when local prefill has become the sooner way', async (_how, how) => {
  // A new decoder has learned nothing of the producer; what that says of itself makes it worth a try.
  const rig = await Rig.start({ stallTimeoutMs: 50_000 });
  try {
    await rig.offer({ prefillTokensPerSecond: 1e6 }, how);
    const { prompt, value } = rig.document(7, 1_700);
    const { text, muser } = await ask(rig.url, prompt, { prefill: 'auto' });
    expect(text).toContain(value);
    expect(muser.fallback?.code).toBe('PRODUCER_SLOW');
    expect(muser.attempts).toMatchObject([{ code: 'PRODUCER_SLOW' }]);
    expect(muser.prefill).toBe(muser.attempts[0]?.to === 0 ? 'local' : 'resumed');
    // The producer was told: nothing of the call is left.
    await rig.settled();
  } finally {
    await rig.close();
  }
});
