// What a request leaves for the next one: real engines, real sockets.
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { ask, parseSse, post } from '../support/client.js';
import { CHUNK_TOKENS, Rig } from '../support/rig.js';
import type { Misbehaviour } from '../support/stand-in-producer.js';

let rig: Rig;
beforeAll(async () => {
  rig = await Rig.start();
});
afterEach(() => rig.settled());
afterAll(() => rig?.close());

/** See fallback.test.ts; a chunk without window rows has one. */
const SHARDS_PER_CHUNK = 2;

async function keptTokens(of = rig): Promise<number> {
  const { kept } = (await (await fetch(`${of.url}/health`)).json()) as { kept: { tokens: number } };
  return kept.tokens;
}

/** Asks, and leaves as soon as `done` tokens of the prompt are there, by the way that it is told to go. */
async function leaveAt(prompt: string, prefill: 'local' | 'remote', done: number, of = rig): Promise<void> {
  const leaving = new AbortController();
  const response = await post(
    of.url,
    { messages: [{ role: 'user', content: prompt }], stream: true, muser: { prefill, progress: true } },
    { signal: leaving.signal },
  );
  let seen = '';
  const isThere = (): boolean =>
    // The last event may not be whole yet.
    parseSse(seen.slice(0, seen.lastIndexOf('\n\n') + 2)).events.some(({ name, data }) => {
      if (name !== 'muser.progress') return false;
      const { phase, tokens } = JSON.parse(data) as { phase: string; tokens: number };
      return phase === (prefill === 'local' ? 'prefill' : 'transfer') && tokens >= done;
    });
  const reader = response.body?.getReader();
  while (!isThere()) {
    const part = await reader?.read();
    if (part?.value === undefined) throw new Error('the stream ended');
    seen += Buffer.from(part.value as Uint8Array).toString();
  }
  leaving.abort();
  await of.settled();
}

/** Sends so many shards and nothing more. */
function stopAfter(shards: number, how: Misbehaviour = {}): Misbehaviour {
  return {
    ...how,
    after: async (kind, shard, { signal }) => {
      if (kind !== 'shard' || shard + 1 < shards) return;
      await new Promise((resolve) => signal.addEventListener('abort', resolve, { once: true }));
      throw signal.reason;
    },
  };
}

// promise: Ctrl-C and ask again: what was verified of a transfer is neither sent nor computed here again.
test('a transfer that was left goes on with the next request of the same prompt', async () => {
  await rig.offer({}, stopAfter(2 * SHARDS_PER_CHUNK + 1));
  const { prompt, value } = rig.document(31, 1_700);
  await leaveAt(prompt, 'remote', 2 * CHUNK_TOKENS);
  expect(await keptTokens()).toBe(2 * CHUNK_TOKENS);

  await rig.offer();
  const { text, muser } = await ask(rig.url, prompt, { prefill: 'remote' });
  expect(text).toContain(value);
  expect(muser).toMatchObject({ prefill: 'remote', fallback: null, cachedTokens: 2 * CHUNK_TOKENS });
  expect(rig.producer.requests.at(-1)?.heldTokens).toBe(2 * CHUNK_TOKENS);
  const sentRows = muser.promptTokens - 1 - 2 * CHUNK_TOKENS;
  expect(muser.kvBytes).toBe(sentRows * 8 * 2 * 2 * 64 * 2);
});

test('rows that came after the last resume point are not kept', async () => {
  // The window rows of the second chunk are missing, so nobody can go on from its end.
  await rig.offer({}, stopAfter(SHARDS_PER_CHUNK + 2, { skipWindowOf: [1] }));
  const { prompt, value } = rig.document(32, 1_900);
  await leaveAt(prompt, 'remote', 2 * CHUNK_TOKENS);
  expect(await keptTokens()).toBe(CHUNK_TOKENS);

  const { text, muser } = await ask(rig.url, prompt, { prefill: 'local' });
  expect(text).toContain(value);
  expect(muser.cachedTokens).toBe(CHUNK_TOKENS);
});

test('a local prefill that was left goes on, and gives the answer that it would have given', async () => {
  await rig.offer();
  const { prompt } = rig.document(33, 1_700);
  const before = await ask(rig.url, prompt, { prefill: 'local' });
  expect(before.muser.cachedTokens).toBe(0);
  await leaveAt(prompt, 'local', CHUNK_TOKENS);
  const { text, muser } = await ask(rig.url, prompt, { prefill: 'local' });
  expect(muser.cachedTokens).toBeGreaterThanOrEqual(CHUNK_TOKENS);
  expect(text).toBe(before.text);
});

test('the next turn of a chat does not prefill the first one again', async () => {
  await rig.offer();
  const { prompt, value } = rig.document(34, 900);
  const first = await ask(rig.url, prompt, { prefill: 'auto' });
  expect(first.text).toContain(value);
  const messages = [
    { role: 'user', content: prompt },
    { role: 'assistant', content: first.text },
    { role: 'user', content: prompt.split('\n').at(-1) },
  ];
  const second = await ask(rig.url, '', { prefill: 'auto' }, { messages });
  expect(second.muser.cachedTokens).toBe(first.muser.promptTokens - 1);
  expect(second.text).toContain(value);
});

test('what is kept of a producer is dropped when its rows are found wrong', async () => {
  const own = await Rig.start({ checkedTransfers: 1 });
  try {
    await own.offer({}, stopAfter(SHARDS_PER_CHUNK + 1));
    await leaveAt(own.document(11, 700).prompt, 'remote', CHUNK_TOKENS, own);
    expect(await keptTokens(own)).toBe(CHUNK_TOKENS);
    await own.offer({}, { payload: (rows) => Buffer.alloc(rows.length) });
    const { muser } = await ask(own.url, own.document(12, 100).prompt, { prefill: 'remote' }, { max_tokens: 1 });
    expect(muser.fallback?.code).toBe('KV_MISMATCH');
    expect(await keptTokens(own)).toBe(0);
  } finally {
    await own.close();
  }
});
