import { describe, expect, test } from 'vitest';
import { chatRequestSchema } from '../../src/api/schema.js';
import { invalidBody, toHttpError } from '../../src/errors/http-errors.js';

const messages = [{ role: 'user', content: 'hi' }];

function paramOf(body: unknown): string | null {
  const parsed = chatRequestSchema.safeParse(body);
  if (parsed.success) throw new Error('was accepted');
  const { status, body: answer } = toHttpError(invalidBody(parsed.error));
  expect(status).toBe(400);
  expect(answer.error).toMatchObject({ type: 'invalid_request_error', code: 'INVALID_REQUEST' });
  return answer.error.param;
}

describe('chatRequestSchema', () => {
  test('takes what the openai client sends, nulls and unknown keys included', () => {
    const parsed = chatRequestSchema.parse({
      model: 'any',
      messages: [
        { role: 'developer', content: 'be brief' },
        {
          role: 'user',
          content: [
            { type: 'text', text: 'a' },
            { type: 'text', text: 'b' },
          ],
          name: 'me',
        },
        { role: 'assistant', content: null },
      ],
      temperature: null,
      n: 1,
      tools: [],
      response_format: { type: 'text' },
      logit_bias: { '5': -100 },
      stop: 'END',
      store: true,
    });
    expect(parsed.messages).toEqual([
      { role: 'system', content: 'be brief' },
      { role: 'user', content: 'ab' },
      { role: 'assistant', content: '' },
    ]);
    expect(parsed).toMatchObject({ stream: false, stop: ['END'], logit_bias: [[5, -100]] });
    expect(parsed.temperature).toBeUndefined();
  });

  test.each<[string, object]>([
    ['messages', {}],
    ['messages', { messages: [] }],
    ['messages', { messages: 'hi' }],
    ['messages[0].role', { messages: [{ role: 'tool', content: 'x', tool_call_id: '1' }] }],
    ['messages[0].content', { messages: [{ role: 'user' }] }],
    ['messages[0].content', { messages: [{ role: 'user', content: 7 }] }],
    [
      'messages[0].content[1].type',
      {
        messages: [
          {
            role: 'user',
            content: [
              { type: 'text', text: 'a' },
              { type: 'image_url', image_url: { url: 'x' } },
            ],
          },
        ],
      },
    ],
    ['messages[0].content[0].type', { messages: [{ role: 'user', content: [{ type: 'input_audio' }] }] }],
    ['messages[0].tool_calls', { messages: [{ role: 'assistant', content: '', tool_calls: [{}] }] }],
    ['n', { messages, n: 2 }],
    ['tools', { messages, tools: [{ type: 'function' }] }],
    ['functions', { messages, functions: [{}] }],
    ['response_format', { messages, response_format: { type: 'json_object' } }],
    ['logprobs', { messages, logprobs: true }],
    ['modalities', { messages, modalities: ['text', 'audio'] }],
    ['temperature', { messages, temperature: 'hot' }],
    ['temperature', { messages, temperature: -1 }],
    ['max_tokens', { messages, max_tokens: 0 }],
    ['max_tokens', { messages, max_tokens: 1.5 }],
    ['stream', { messages, stream: 'yes' }],
    ['stop', { messages, stop: [''] }],
    ['stop', { messages, stop: ['x'.repeat(513)] }],
    ['stop', { messages, stop: Array.from({ length: 17 }, () => 'x') }],
    ['seed', { messages, seed: 'x' }],
    ['muser.prefill', { messages, muser: { prefill: 'both' } }],
    ['muser', { messages, muser: { unknown: 1 } }],
  ])('names %s', (param, body) => {
    expect(paramOf(body)?.startsWith(param)).toBe(true);
  });

  test.each([null, undefined, [], 'text', 7])('refuses a body of %j', (body) => {
    expect(paramOf(body)).toBeNull();
  });
});

describe('toHttpError', () => {
  test('hides what a foreign error says', () => {
    const { status, body } = toHttpError(new Error('user wrote: secret'));
    expect(status).toBe(500);
    expect(JSON.stringify(body)).not.toContain('secret');
  });
});
