// An enrolled producer that signs and sends rows which are not those of the prompt.
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { ask } from '../support/client.js';
import { TwoProducers } from '../support/two-producers.js';
import type { Misbehaviour } from '../support/stand-in-producer.js';

let two: TwoProducers;
beforeAll(async () => {
  two = await TwoProducers.start();
});
afterEach(() => two.settled());
afterAll(() => two?.close());

const ROW_BYTES = 256;
const HEAD_BYTES = 128;
const PROMPT_TOKENS = 600;

const eachRow =
  (change: (row: Buffer, index: number) => void): NonNullable<Misbehaviour['payload']> =>
  (payload) => {
    const changed = Buffer.from(payload);
    for (let at = 0; at < changed.length; at += ROW_BYTES) change(changed.subarray(at, at + ROW_BYTES), at / ROW_BYTES);
    return changed;
  };

const lies: [string, Misbehaviour][] = [
  ['rows of zeros', { payload: eachRow((row) => row.fill(0)) }],
  [
    'heads in another order',
    { payload: eachRow((row) => row.set([...row.subarray(HEAD_BYTES), ...row.subarray(0, HEAD_BYTES)])) },
  ],
  [
    'the opposite of every number',
    { payload: eachRow((row) => row.forEach((byte, at) => (row[at] = at % 2 ? byte ^ 0x80 : byte))) },
  ],
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

describe('rows that are not those of the prompt', () => {
  // promise: The first transfer of a producer is checked: rows that are not those of the prompt are not used, nor is the producer.
  test.each(lies)('%s: the answer is right, the producer is avoided', async (_name, lie) => {
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

    const calls = rig.producer.calls();
    const again = await ask(rig.url, rig.document(2, PROMPT_TOKENS).prompt, { prefill: 'remote' }, { max_tokens: 1 });
    expect(again.muser.producer?.name).toBe('second');
    expect(rig.producer.calls()).toBe(calls);
  });

  test('with nobody else the decoder prefills, and says why', async () => {
    const { rig } = two;
    await rig.offer({}, { payload: eachRow((row) => row.fill(0)) });
    const { prompt, value } = rig.document(3, PROMPT_TOKENS);
    const { text, muser } = await ask(rig.url, prompt, { prefill: 'remote' });
    expect(text).toContain(value);
    expect([muser.prefill, muser.fallback?.code]).toEqual(['local', 'KV_MISMATCH']);
    const log = await rig.log();
    const line = log.split('\n').find((one) => one.includes('wrong rows')) ?? '{}';
    expect(JSON.parse(line)).toMatchObject({ level: 'error', verdict: 'wrong', layer: expect.any(Number) as number });
  });
});
