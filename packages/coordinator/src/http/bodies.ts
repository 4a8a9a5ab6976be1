import {
  isNodeId,
  MAX_ADDRESSES,
  MAX_ADDRESS_BYTES,
  MAX_DEADLINE_MS,
  MAX_NAME_BYTES,
  MuserError,
} from '@muser/protocol';
import { parseTarget } from '@muser/transport';
import { z } from 'zod';

/** Letters, digits and a few signs: a name is shown in terminals and tables, so it holds nothing that they act on. */
const NAME = /^[\p{L}\p{N}][\p{L}\p{N} ._@-]*$/u;

const name = z
  .string()
  .regex(NAME, 'must begin with a letter or digit and hold letters, digits, spaces and . _ @ - only')
  .refine((text) => Buffer.byteLength(text) <= MAX_NAME_BYTES, `must have at most ${MAX_NAME_BYTES} bytes`);

const address = z.string().max(MAX_ADDRESS_BYTES).refine(isTarget, 'must be "host:port", an IPv6 address in brackets');

const addresses = z
  .array(address)
  .max(MAX_ADDRESSES)
  .refine((list) => new Set(list).size === list.length, 'must not name an address twice');

const identityRequest = z.strictObject({
  role: z.enum(['coordinator', 'decoder', 'producer']),
  signingPublicKey: z.string().max(64),
  csrPem: z.string().max(8_192),
  proof: z.string().max(128),
});

export const enrollBody = z.strictObject({
  name,
  role: z.enum(['producer', 'decoder']),
  addresses,
  request: identityRequest,
});

export const changeBody = z.strictObject({ name: name.optional(), addresses: addresses.optional() });

const DEFAULT_ORDER_LIMIT_MS = 600_000;
const deadlineMs = z.number().int().min(1).max(MAX_DEADLINE_MS).default(DEFAULT_ORDER_LIMIT_MS);

export const pauseBody = z.strictObject({ cancelRunning: z.boolean().default(false), deadlineMs });

export const resumeBody = z.strictObject({ deadlineMs });

const ROTATION_LIMIT_MS = 30_000;

export const rotateBody = z.strictObject({
  deadlineMs: z.number().int().min(1).max(MAX_DEADLINE_MS).default(ROTATION_LIMIT_MS),
});

export const nodeParams = z.object({
  id: z.string().refine(isNodeId, 'must be a node id'),
});

/** @throws MuserError INVALID_REQUEST naming every field that is wrong; values are not repeated */
export function parseInput<T>(schema: z.ZodType<T>, input: unknown): T {
  const parsed = schema.safeParse(input);
  if (parsed.success) return parsed.data;
  const problems = parsed.error.issues.map(({ path, message }) => `${path.join('.') || '(body)'}: ${message}`);
  throw new MuserError('INVALID_REQUEST', problems.join('; '));
}

function isTarget(text: string): boolean {
  try {
    parseTarget(text);
    return true;
  } catch {
    return false;
  }
}
