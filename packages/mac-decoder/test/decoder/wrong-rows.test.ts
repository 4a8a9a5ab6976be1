// An enrolled producer that signs and sends rows which are not those of the prompt.
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { ask } from '../support/client.js';
import { CHUNK_TOKENS } from '../support/rig.js';
import { endsAt, SHARDS_PER_CHUNK, TwoProducers } from '../support/two-producers.js';
import type { Misbehaviour } from '../support/stand-in-producer.js';

let two: TwoProducers;
beforeAll(async () => {
  two = await TwoProducers.start({ checkedTransfers: 1 });
});
afterEach(() => two.settled());
afterAll(() => two?.close());

const ROW_BYTES = 256;
const HEAD_BYTES = 128;
const PROMPT_TOKENS = 150;

const eachRow =
  (change: (row: Buffer, index: number) => void): NonNullable<Misbehaviour['payload']> =>
  (payload) => {
    const changed = Buffer.from(payload);
    for (let at = 0; at < changed.length; at += ROW_BYTES) change(changed.subarray(at, at + ROW_BYTES), at / ROW_BYTES);
    return changed;
  };

const opposite: Misbehaviour = {
  payload: eachRow((row) => row.forEach((byte, at) => (row[at] = at % 2 ? byte ^ 0x80 : byte))),
};

const lies: [string, Misbehaviour][] = [
  ['rows of zeros', { payload: eachRow((row) => row.fill(0)) }],
  [
    'heads in another order',
    { payload: eachRow((row) => row.set([...row.subarray(HEAD_BYTES), ...row.subarray(0, HEAD_BYTES)])) },
  ],
  ['the opposite of every number', opposite],
  [
    'layers one place further',
    {
      payload: (payload) =>
        Buffer.concat([payload.subarray(-payload.length / 4), payload.subarray(0, -payload.length / 4)]),
    },
  ],
  ['another prompt', { tokens: (tokens) => tokens.toReversed() }],
];

const counts = async () => (await two.rig.health()).checkedTransfers;

/** The last line of the log about wrong rows. */
async function lastFinding(rig = two.rig): Promise<Record<string, unknown>> {
  const lines = (await rig.log()).split('\n').filter((line) => line.includes('wrong rows'));
  return JSON.parse(lines.at(-1) ?? '{}') as Record<string, unknown>;
}

describe('rows that are not those of the prompt', () => {
  // promise: The first transfer of a producer is checked: rows that are not those of the prompt are not used.
  test.each(lies)('%s: the answer is right, another producer gives it', async (_name, lie) => {
    const { rig } = two;
    const before = await counts();
    await two.offer(lie);
    const { prompt, value } = rig.document(1, PROMPT_TOKENS);
    const { text, muser } = await ask(rig.url, prompt, { prefill: 'remote' });
    expect(text).toContain(value);
    expect(muser.attempts.map(({ producer, code, to }) => [producer.name, code, to])).toEqual([
      ['stand-in', 'KV_MISMATCH', 0],
      ['second', null, muser.promptTokens - 1],
    ]);
    expect((await counts()).wrong).toBe(before.wrong + 1);
  });

  // promise: A producer whose rows were found wrong is left alone; the decoder prefills by itself where there is no other.
  test('with nobody else the decoder prefills, says why, and does not go there again', async () => {
    const { rig } = two;
    await rig.offer({}, { payload: eachRow((row) => row.fill(0)) });
    const { prompt, value } = rig.document(3, PROMPT_TOKENS);
    const { text, muser } = await ask(rig.url, prompt, { prefill: 'remote' });
    expect(text).toContain(value);
    expect([muser.prefill, muser.fallback?.code]).toEqual(['local', 'KV_MISMATCH']);
    expect(await lastFinding()).toMatchObject({
      ...{ level: 'error', verdict: 'wrong', layer: expect.any(Number) as number },
      distrusted: [rig.producer.nodeId],
    });

    const calls = rig.producer.calls();
    const again = await ask(rig.url, rig.document(2, PROMPT_TOKENS).prompt, { prefill: 'remote' }, { max_tokens: 1 });
    expect([again.muser.prefill, rig.producer.calls()]).toEqual(['local', calls]);
  });
});

describe('a producer that chooses its chunks so that the window rows before the sample do not come', () => {
  const W = CHUNK_TOKENS;
  const choices: [string, number, Misbehaviour][] = [
    ['one chunk that is longer than the window', 1.2 * W, { chunkTokens: () => 8 * W }],
    [
      'a last chunk as long as the window, and none of the window before it',
      2.1 * W,
      { chunkTokens: (endToken) => endToken - W, skipWindowOf: [0] },
    ],
  ];

  // promise: A producer cannot avoid checks by the length of its chunks or by what it skips.
  test.each(choices)('is checked all the same: %s', async (_name, promptTokens, choice) => {
    const { rig } = two;
    await two.offer({ ...choice, ...opposite });
    const { prompt, value } = rig.document(4, Math.round(promptTokens));
    const { text, muser } = await ask(rig.url, prompt, { prefill: 'remote' });
    expect(text).toContain(value);
    expect(muser.attempts[0]).toMatchObject({ producer: { name: 'stand-in' }, to: 0, code: 'KV_MISMATCH' });
    expect(await lastFinding()).toMatchObject({ producerId: rig.producer.nodeId, sampledTokens: 1 });
  });
});

test('rows that are used though their transfer did not complete are checked where they end', async () => {
  const { rig } = two;
  await two.offer({ ...opposite, ...endsAt(SHARDS_PER_CHUNK - 1) });
  const { prompt, value } = rig.document(7, 550);
  const { text, muser } = await ask(rig.url, prompt, { prefill: 'remote' });
  expect(text).toContain(value);
  expect(muser.attempts).toMatchObject([
    { producer: { name: 'stand-in' }, from: 0, to: 0, code: 'KV_MISMATCH' },
    { producer: { name: 'second' }, from: 0, code: null },
  ]);
});

// promise: Wrong rows that may be of several producers are used by nobody, and all of these producers are avoided.
test('rows of two producers: wrong ones of the first, which nobody checked, cost both of them the trust', async () => {
  // Only what is due is checked, nothing by chance.
  const pair = await TwoProducers.start({ checkedTransfers: 1e-9 });
  try {
    const { rig, second } = pair;
    const once = async (seed: number) =>
      (await ask(rig.url, rig.document(seed, PROMPT_TOKENS).prompt, { prefill: 'remote' }, { max_tokens: 1 })).muser;
    await pair.offer({});
    expect((await once(8)).producer?.name).toBe('stand-in');

    await pair.offer({ ...opposite, ...endsAt(SHARDS_PER_CHUNK - 1) });
    const { prompt, value } = rig.document(9, CHUNK_TOKENS);
    const { text, muser } = await ask(rig.url, prompt, { prefill: 'remote' });
    expect(text).toContain(value);
    expect(muser.attempts).toMatchObject([
      { producer: { name: 'stand-in' }, from: 0, to: CHUNK_TOKENS, code: 'TRANSFER_TRUNCATED' },
      { producer: { name: 'second' }, from: CHUNK_TOKENS, to: 0, code: 'KV_MISMATCH' },
    ]);
    const distrusted = [rig.producer.nodeId, second.nodeId];
    expect(await lastFinding(rig)).toMatchObject({ distrusted, resumedAt: 0 });

    const calls = [rig.producer.calls(), second.calls()];
    expect((await once(10)).prefill).toBe('local');
    expect([rig.producer.calls(), second.calls()]).toEqual(calls);
  } finally {
    await pair.close();
  }
});
