// Bodies of POST /v1/chat/completions: each is taken or refused with INVALID_REQUEST and the parameter's name, its values
// are not repeated, and what is taken keeps the limits.
import assert from 'node:assert/strict';
import { Choices, mutated, mutatedJson, PLANTED_SECRET } from '@muser/testing';
import { chatRequestSchema } from '../src/api/schema.js';
import { invalidBody, toHttpError } from '../src/errors/http-errors.js';

const example = {
  model: 'any',
  messages: [
    { role: 'developer', content: 'be brief' },
    { role: 'user', content: [{ type: 'text', text: 'a' }], name: 'me' },
    { role: 'assistant', content: null },
    { role: 'user', content: 'hi' },
  ],
  stream: true,
  stream_options: { include_usage: true },
  max_tokens: 5,
  max_completion_tokens: 6,
  temperature: 0.5,
  top_p: 0.9,
  top_k: 40,
  min_p: 0.1,
  repeat_penalty: 1.1,
  presence_penalty: 0,
  frequency_penalty: 0,
  seed: 7,
  stop: ['END'],
  logit_bias: { '5': -100 },
  muser: { prefill: 'auto', progress: true },
  n: 1,
  tools: [],
  tool_choice: 'none',
  response_format: { type: 'text' },
  logprobs: false,
  top_logprobs: 0,
  modalities: ['text'],
};
const text = Buffer.from(JSON.stringify(example));

export function fuzz(input: Buffer): void {
  const choose = new Choices(input);
  const body = choose.integer(0, 4) === 0 ? parsed(mutated(choose, text)) : mutatedJson(choose, example);
  const result = chatRequestSchema.safeParse(body);
  if (!result.success) {
    const { status, body: answer } = toHttpError(invalidBody(result.error));
    assert.equal(status, 400);
    assert.equal(answer.error.code, 'INVALID_REQUEST');
    assert(!answer.error.message.includes(PLANTED_SECRET.repeat(2)), 'an error repeats a value');
    assert(answer.error.message.length < 1_000, 'an error as long as its request');
    return;
  }
  const { messages, stop, logit_bias: bias, max_tokens: most } = result.data;
  assert(messages.length > 0 && messages.every(({ content }) => typeof content === 'string'));
  assert(stop.length <= 16 && bias.length <= 1_024);
  assert(most === undefined || (Number.isInteger(most) && most > 0));
  assert(!('polluted' in {}), 'a body has changed all objects');
}

function parsed(bytes: Buffer): unknown {
  try {
    return JSON.parse(bytes.toString('utf8')) as unknown;
  } catch {
    return null;
  }
}

export function seeds(): [string, Buffer][] {
  return Array.from({ length: 8 }, (_, kind) => [
    `change-${kind}`,
    Buffer.from([1, 0, 1, kind * 3, 2, kind, 1, kind, 0, kind * 2]),
  ]);
}
