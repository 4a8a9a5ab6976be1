import { request as httpRequest } from 'node:http';
import { connect } from 'node:net';
import { Random } from '@muser/testing';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { ask, post } from '../support/client.js';
import { Rig } from '../support/rig.js';

let rig: Rig;
beforeAll(async () => {
  rig = await Rig.start();
  await rig.offer();
});
afterEach(() => rig.settled());
afterAll(() => rig?.close());

/** What every error has, and nothing more. */
const ERROR_BODY: Record<string, unknown> = {
  message: expect.any(String),
  type: expect.any(String),
  code: expect.any(String),
  param: expect.toSatisfy((param) => param === null || typeof param === 'string'),
  retryable: expect.any(Boolean),
  details: expect.any(Object),
};

const user = (content: string) => ({ role: 'user' as const, content });

describe('clients that leave', () => {
  // fault: computes-for-nobody
  test.each(['local', 'remote'] as const)('stop a %s prefill at once', async (prefill) => {
    const { prompt } = rig.document(1, 4_000);
    const leaving = new AbortController();
    const response = await post(
      rig.url,
      { messages: [user(prompt)], stream: true, muser: { prefill, progress: true } },
      { signal: leaving.signal },
    );
    const reader = response.body?.getReader();
    let seen = '';
    while (!seen.includes('"phase"')) {
      const part = await reader?.read();
      if (part?.value === undefined) throw new Error('the stream ended');
      seen += Buffer.from(part.value as Uint8Array).toString();
    }
    expect((await rig.health()).sequences.active).toBe(1);
    leaving.abort();
    await rig.settled();
    expect(seen).not.toContain('"finish_reason":"stop"');
  });

  test('stop a decode, also when the answer is not streamed', async () => {
    const leaving = new AbortController();
    const answer = post(
      rig.url,
      { messages: [user('Hello')], max_tokens: 4_000, logit_bias: { '5': -100, '1': -100 } },
      { signal: leaving.signal },
    );
    await rig.until(async () => (await rig.health()).sequences.active === 1);
    leaving.abort();
    await expect(answer).rejects.toThrow();
    await rig.settled();
  });

  test('leave the line', async () => {
    const long = { messages: [user('Hello')], max_tokens: 8_000, logit_bias: { '5': -100, '1': -100 } };
    const first = new AbortController();
    const second = new AbortController();
    const answers = [post(rig.url, long, { signal: first.signal })];
    await rig.until(async () => (await rig.health()).sequences.active === 1);
    answers.push(post(rig.url, long, { signal: second.signal }));
    second.abort();
    first.abort();
    await Promise.allSettled(answers);
    await rig.settled();
    expect((await ask(rig.url, 'Hello', { prefill: 'local' })).text).not.toBe('');
  });
});

/** Values that are wrong almost everywhere. */
const ODD_VALUES: readonly unknown[] = [
  null,
  true,
  false,
  0,
  -1,
  1.5,
  1e308,
  -0,
  '',
  'x',
  '\u0000',
  '\ud800',
  [],
  [null],
  [[]],
  {},
  { a: 1 },
  'null',
  [1, 'a', {}],
  { type: 'text' },
  { type: 'image_url', image_url: {} },
  { __proto__: null },
  2 ** 53,
  '<|eot|>',
];
const KEYS = [
  'model',
  'messages',
  'stream',
  'stream_options',
  'max_tokens',
  'max_completion_tokens',
  'temperature',
  'top_p',
  'top_k',
  'min_p',
  'repeat_penalty',
  'presence_penalty',
  'frequency_penalty',
  'seed',
  'stop',
  'logit_bias',
  'muser',
  'n',
  'tools',
  'functions',
  'tool_choice',
  'response_format',
  'logprobs',
  'modalities',
  'audio',
  'unknown',
  'constructor',
  'toString',
];

describe('malformed requests', () => {
  const SEED = 20_260;

  test('300 random bodies are refused or answered, never a fault', async () => {
    const random = new Random(SEED);
    for (let round = 0; round < 300; round++) {
      const body: Record<string, unknown> = { messages: [{ role: 'user', content: 'hi' }], max_tokens: 1 };
      for (let change = random.integer(1, 3); change > 0; change--) body[random.pick(KEYS)] = random.pick(ODD_VALUES);
      if (random.integer(0, 3) === 0) {
        body['messages'] = [
          { role: random.pick(['user', 'tool', 7]), content: random.pick(ODD_VALUES), name: random.pick(ODD_VALUES) },
        ];
      }
      const response = await post(rig.url, body);
      const text = await response.text();
      const told = `seed ${SEED}, round ${round}: ${JSON.stringify(body)} -> ${response.status} ${text}`;
      expect(response.status < 500, told).toBe(true);
      if (response.status !== 200) expect(JSON.parse(text), told).toEqual({ error: ERROR_BODY });
    }
  });

  test('100 damaged texts are refused', async () => {
    const random = new Random(SEED + 1);
    const valid = JSON.stringify({ messages: [{ role: 'user', content: 'hello' }], max_tokens: 1, stop: ['a'] });
    for (let round = 0; round < 100; round++) {
      const cut = valid.slice(0, random.integer(0, valid.length - 1));
      const body = round % 2 === 0 ? cut : cut + random.pick(['\u0000', '{', ']', '"', '\\']) + valid;
      const response = await post(rig.url, body);
      expect(response.status, `seed ${SEED + 1}, round ${round}: ${body}`).toBe(400);
      expect(await response.json()).toEqual({ error: { ...ERROR_BODY, code: 'INVALID_REQUEST' } });
    }
  });

  test.each<[string, string, number]>([
    ['another content type', 'text/plain', 400],
    ['no content type that fits', 'application/xml', 400],
  ])('%s', async (_name, type, status) => {
    const response = await post(rig.url, '{}', { headers: { 'content-type': type } });
    expect(response.status).toBe(status);
  });

  test('deep nesting, a huge array and a prototype are only wrong', async () => {
    for (const body of [
      `{"messages":${'['.repeat(50_000)}${']'.repeat(50_000)}}`,
      `{"messages":[${'0,'.repeat(100_000)}0]}`,
      '{"__proto__":{"messages":1}}',
    ]) {
      expect((await post(rig.url, body)).status).toBe(400);
    }
  });

  test('a body beyond the limit is refused with the limit', async () => {
    const response = await post(rig.url, { messages: [user('x'.repeat(9 << 20))] });
    expect(response.status).toBe(413);
    expect(await response.json()).toMatchObject({
      error: { code: 'MESSAGE_TOO_LARGE', message: expect.stringContaining(String(8 << 20)) as string },
    });
  });

  test('as much text as `muser ask` sends is refused for its tokens, not for its bytes', async () => {
    const response = await post(rig.url, { messages: [user('"a"\n'.repeat(1 << 20))] });
    expect(await response.json()).toMatchObject({ error: { code: 'PROMPT_TOO_LONG' } });
  });

  test('what is not HTTP does no harm', async () => {
    const port = Number(new URL(rig.url).port);
    await new Promise<void>((resolve) => {
      const socket = connect(port, '127.0.0.1', () => socket.end(Buffer.from([0x16, 3, 1, 0, 5, 0, 0, 0, 0, 0])));
      socket.on('error', () => undefined);
      socket.on('close', () => resolve());
      socket.resume();
    });
    expect((await fetch(`${rig.url}/health`)).status).toBe(200);
  });

  test('an unknown path is not found, in the same form', async () => {
    const response = await fetch(`${rig.url}/v1/nothing`);
    expect(response.status).toBe(404);
    const expected = { ...ERROR_BODY, code: 'NOT_FOUND', type: 'not_found_error' };
    expect(await response.json()).toEqual({ error: expected });
  });
});

test('the model has the name that people give it, whatever a converter wrote into the file', async () => {
  const { data } = (await (await fetch(`${rig.url}/v1/models`)).json()) as { data: { id: string }[] };
  expect(data.map(({ id }) => id)).toEqual(['muse-nano']);
});

describe('web pages', () => {
  function status(headers: Record<string, string>): Promise<number | undefined> {
    return new Promise((resolve, reject) => {
      const call = httpRequest(`${rig.url}/v1/models`, { headers }, (response) => {
        response.resume();
        resolve(response.statusCode);
      });
      call.on('error', reject);
      call.end();
    });
  }

  // fault: open-to-anybody
  test('of another origin, or under another host name, are refused', async () => {
    expect(await status({})).toBe(200);
    expect(await status({ host: 'evil.example' })).toBe(403);
    expect(await status({ origin: 'https://evil.example' })).toBe(403);
  });
});
