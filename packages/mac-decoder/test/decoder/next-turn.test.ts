import { afterAll, beforeAll, expect, test } from 'vitest';
import { ask, post } from '../support/client.js';
import { Rig } from '../support/rig.js';

let rig: Rig;
beforeAll(async () => {
  rig = await Rig.start();
  await rig.offer();
});
afterAll(() => rig?.close());

// promise: Rows that were handed over are used again: a question that begins like the one before evaluates only what is new.
// fault: next-turn-starts-over
test('rows that were handed over serve the next question', async () => {
  const { prompt, question, value } = rig.document(41, 1_000);
  const first = [{ role: 'user', content: prompt }];
  const leaving = new AbortController();
  // By the remote way, whatever the rates; its rows are kept because the client leaves while the answer comes.
  const endless = { '5': -100, '1': -100 };
  const response = await post(
    rig.url,
    { messages: first, stream: true, max_tokens: 4_000, logit_bias: endless, muser: { prefill: 'remote' } },
    { signal: leaving.signal },
  );
  const reader = response.body?.getReader();
  for (let seen = ''; !/"content":"[^"]/.test(seen);) {
    const part = await reader?.read();
    if (part?.value === undefined) throw new Error(`the stream ended: ${seen}`);
    seen += Buffer.from(part.value as Uint8Array).toString();
  }
  leaving.abort();
  await rig.settled();
  expect(rig.producer.calls()).toBe(1);

  const messages = [...first, { role: 'assistant', content: value }, { role: 'user', content: question }];
  const next = await ask(rig.url, '', { prefill: 'auto' }, { messages });
  expect(next.text).toContain(value);
  expect(next.muser.prefill).toBe('local');
  // All of the first question but the line that opens its answer.
  expect(next.muser.promptTokens - next.muser.cachedTokens).toBeLessThan(100);
  expect(rig.producer.calls()).toBe(1);
});
