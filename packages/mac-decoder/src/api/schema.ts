import { z } from 'zod';
import { prefillModeSchema } from '../config.js';

const MAX_MESSAGES = 4_096;
const MAX_STOP_STRINGS = 16;
const MAX_STOP_CHARACTERS = 512;
const MAX_LOGIT_BIASES = 1_024;

/** OpenAI's clients send null for "not given". */
function optional<T extends z.ZodType>(schema: T) {
  return schema.nullish().transform((value) => value ?? undefined);
}

function number(minimum: number, maximum: number) {
  return optional(z.number().min(minimum).max(maximum));
}

function integer(minimum: number, maximum: number) {
  return optional(z.number().int().min(minimum).max(maximum));
}

/** A parameter of OpenAI's API that changes the answer and that we do not have: refused, never ignored. */
function unsupported(isHarmless: (value: unknown) => boolean, message: string) {
  return z
    .unknown()
    .refine((value) => value === undefined || value === null || isHarmless(value), { message })
    .optional();
}

const isEmptyArray = (value: unknown): boolean => Array.isArray(value) && value.length === 0;

const textPart = z.object({
  type: z.literal('text', { error: 'Only text parts are supported: images, audio and files are not.' }),
  text: z.string(),
});

/** A string is the short form of a single text part. */
const contentSchema = z.preprocess(
  (content) => (typeof content === 'string' ? [{ type: 'text', text: content }] : content),
  z.array(textPart, { error: 'must be a string or a list of text parts' }).max(MAX_MESSAGES).nullish(),
);

const messageSchema = z
  .object({
    role: z.enum(['system', 'developer', 'user', 'assistant'], {
      error: 'must be "system", "developer", "user" or "assistant"; tools are not supported',
    }),
    content: contentSchema,
    tool_calls: unsupported(isEmptyArray, 'Tools are not supported.'),
    function_call: unsupported(() => false, 'Tools are not supported.'),
    audio: unsupported(() => false, 'Audio is not supported.'),
  })
  .superRefine((message, context) => {
    // OpenAI lets an assistant's message have no content; nobody else's.
    if ((message.content === null || message.content === undefined) && message.role !== 'assistant') {
      context.addIssue({ code: 'custom', path: ['content'], message: 'must be a string or a list of text parts' });
    }
  })
  .transform(({ role, content }) => ({
    // OpenAI's newer name; chat templates know the older one.
    role: role === 'developer' ? 'system' : role,
    content: (content ?? []).map((part) => part.text).join(''),
  }));

const stopSchema = optional(
  z.union([
    z.string().max(MAX_STOP_CHARACTERS),
    z.array(z.string().min(1).max(MAX_STOP_CHARACTERS)).max(MAX_STOP_STRINGS),
  ]),
).transform((stop) => (typeof stop === 'string' ? [stop] : (stop ?? [])).filter((text) => text !== ''));

const logitBiasSchema = optional(
  z.record(z.string().regex(/^\d{1,9}$/, 'keys must be token ids'), z.number().min(-100).max(100)),
)
  .refine((bias) => Object.keys(bias ?? {}).length <= MAX_LOGIT_BIASES, {
    message: `at most ${MAX_LOGIT_BIASES} tokens`,
  })
  .transform((bias) => Object.entries(bias ?? {}).map(([token, value]): [number, number] => [Number(token), value]));

/**
 * The body of `POST /v1/chat/completions`. Unknown keys are ignored as OpenAI-compatible servers do; known ones that
 * would change the answer and are not supported are refused by name.
 */
export const chatRequestSchema = z.object({
  model: optional(z.string().max(512)),
  messages: z.array(messageSchema).min(1).max(MAX_MESSAGES),
  stream: optional(z.boolean()).transform((stream) => stream ?? false),
  stream_options: optional(z.object({ include_usage: optional(z.boolean()) })),
  max_tokens: integer(1, 2 ** 31 - 1),
  max_completion_tokens: integer(1, 2 ** 31 - 1),
  temperature: number(0, 2),
  top_p: number(0, 1),
  top_k: integer(0, 2 ** 31 - 1),
  min_p: number(0, 1),
  repeat_penalty: number(0.01, 10),
  presence_penalty: number(-2, 2),
  frequency_penalty: number(-2, 2),
  seed: integer(Number.MIN_SAFE_INTEGER, Number.MAX_SAFE_INTEGER),
  stop: stopSchema,
  logit_bias: logitBiasSchema,
  muser: optional(z.strictObject({ prefill: optional(prefillModeSchema), progress: optional(z.boolean()) })),
  n: unsupported((value) => value === 1, 'Only n = 1 is supported.'),
  tools: unsupported(isEmptyArray, 'Tools are not supported.'),
  functions: unsupported(isEmptyArray, 'Tools are not supported.'),
  tool_choice: unsupported((value) => value === 'none' || value === 'auto', 'Tools are not supported.'),
  function_call: unsupported((value) => value === 'none' || value === 'auto', 'Tools are not supported.'),
  response_format: unsupported(isTextFormat, 'Only the response format "text" is supported.'),
  logprobs: unsupported((value) => value === false, 'Log probabilities are not supported.'),
  top_logprobs: unsupported((value) => value === 0, 'Log probabilities are not supported.'),
  modalities: unsupported(isTextOnly, 'Only the modality "text" is supported.'),
  audio: unsupported(() => false, 'Audio is not supported.'),
});

export type ChatRequest = z.infer<typeof chatRequestSchema>;

function isTextFormat(value: unknown): boolean {
  return typeof value === 'object' && value !== null && 'type' in value && value.type === 'text';
}

function isTextOnly(value: unknown): boolean {
  return Array.isArray(value) && value.every((modality) => modality === 'text');
}
