// A producer that fails in every way at every moment while a second one is there, and random pairs of faults.
import { MuserError } from '@muser/protocol';
import { Random } from '@muser/testing';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { ask } from '../support/client.js';
import { EndStream, type Misbehaviour } from '../support/stand-in-producer.js';
import { at, endsAt, expectSecondWentOn, FAULTS, PHASES, TwoProducers } from '../support/two-producers.js';

const SEED = 20_261_203;
const ROUNDS = 25;
const STALL_MS = 6_000;

let two: TwoProducers;
beforeAll(async () => {
  two = await TwoProducers.start({ stallTimeoutMs: STALL_MS });
});
afterEach(() => two.settled());
afterAll(() => two?.close());

const cells = FAULTS.flatMap(([how, code, of]) =>
  PHASES.map(([when, point, resumedAt]) => [how, when, code, of(point), resumedAt] as const),
);

// promise: However and whenever a producer fails, a second one goes on from the last resume point.
test.each(cells)('the first %s %s', async (_how, _when, code, how, resumedAt) => {
  await two.offer(how);
  const { prompt, value } = two.rig.document(code.length + resumedAt, 1_900);
  const { text, muser } = await ask(two.rig.url, prompt, { prefill: 'remote' });
  expect(text).toContain(value);
  expectSecondWentOn(two, muser, code, resumedAt);
});

/** One thing that goes wrong, or nothing. */
function randomFault(random: Random): Misbehaviour {
  const point = random.integer(0, 3) === 0 ? 'begin' : random.integer(0, 7);
  const how = random.integer(0, 4);
  if (how === 0) return {};
  if (how === 1) return { beforeBegin: () => Promise.reject(new MuserError('QUEUE_FULL', 'full')) };
  if (how === 2) return { skipWindowOf: [0], ...endsAt(point) };
  if (how === 3) {
    return at(point, async () => {
      two.disconnect();
      throw new EndStream();
    });
  }
  return { payload: (payload, shard) => (shard === point ? Buffer.alloc(payload.length, 0xff) : payload) };
}

// promise: Whatever two producers do wrong, the answer is the one that local prefill gives.
test(`${ROUNDS} random pairs of faults`, async () => {
  const { rig } = two;
  const random = new Random(SEED);
  const seen = new Set<string>();
  for (let round = 0; round < ROUNDS; round++) {
    await two.offer(randomFault(random), randomFault(random));
    const { prompt, value } = rig.document(100 + round, 1_200 + 100 * random.integer(0, 8));
    const { text, muser } = await ask(rig.url, prompt, { prefill: 'remote' });
    const message = `seed ${SEED}, round ${round}: ${JSON.stringify(muser.attempts)}`;
    expect(text, message).toContain(value);
    expect(muser.attempts.length, message).toBeGreaterThan(0);
    expect(muser.prefill === 'remote', message).toBe(muser.fallback === null);
    muser.attempts.forEach(({ from }, index) => expect(from, message).toBe(muser.attempts[index - 1]?.to ?? 0));
    seen.add(muser.prefill);
  }
  expect([...seen].sort()).toEqual(['local', 'remote', 'resumed']);
});
