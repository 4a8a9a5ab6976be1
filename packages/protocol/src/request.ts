import { createHash } from 'node:crypto';
import { checkVersion } from './codec.js';
import { MuserError } from './errors.js';
import { MAX_PROMPT_TOKENS } from './limits.js';
import { prefillRequestSchema, type PrefillRequest } from './messages.js';
import { asBuffer, invalid } from './wire/bytes.js';

/** SHA-256 of the first `count` token ids, each as u32 LE; 32 bytes. */
export function tokensDigest(tokens: Uint32Array, count: number): Uint8Array {
  const bytes = Buffer.allocUnsafe(count * 4);
  for (let i = 0; i < count; i++) bytes.writeUInt32LE(tokens[i] ?? 0, i * 4);
  return createHash('sha256').update(bytes).digest();
}

/** SHA-256 of an encoded PrefillRequest: what Begin and Seal name. */
export function requestDigestOf(requestBytes: Uint8Array): Uint8Array {
  return createHash('sha256').update(requestBytes).digest();
}

/** @throws MuserError INVALID_REQUEST, PROMPT_TOO_LONG, MESSAGE_INVALID, MESSAGE_TOO_LARGE */
export function encodePrefillRequest(request: PrefillRequest): Buffer {
  checkPromptLength(request.tokens.length);
  const encoded = prefillRequestSchema.encode(request);
  checkHeld(request);
  return encoded;
}

/**
 * Decodes and checks everything that can be checked without the producer's state: whether a token id is below the
 * model's vocabulary size, and the ticket, are left to the producer.
 * @throws MuserError PROTOCOL_VERSION, PROMPT_TOO_LONG, MESSAGE_INVALID, MESSAGE_TOO_LARGE
 */
export function decodePrefillRequest(bytes: Uint8Array): PrefillRequest {
  checkVersion(bytes);
  const request = prefillRequestSchema.decode(bytes);
  checkHeld(request);
  return request;
}

function checkPromptLength(tokens: number): void {
  if (tokens <= MAX_PROMPT_TOKENS) return;
  throw new MuserError('PROMPT_TOO_LONG', `the prompt has ${tokens} tokens, the limit is ${MAX_PROMPT_TOKENS}`, {
    details: { promptTokens: tokens, limit: MAX_PROMPT_TOKENS },
  });
}

function checkHeld({ tokens, heldTokens, heldDigest }: PrefillRequest): void {
  if (heldTokens >= tokens.length - 1) {
    throw invalid('PrefillRequest.heldTokens', `${heldTokens} of ${tokens.length} tokens leave nothing to transfer`);
  }
  const expected = heldTokens === 0 ? Buffer.alloc(0) : tokensDigest(tokens, heldTokens);
  if (!asBuffer(heldDigest).equals(expected)) {
    throw invalid('PrefillRequest.heldDigest', 'is not the digest of the held tokens');
  }
}
