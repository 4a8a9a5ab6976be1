import type { Readable } from 'node:stream';

import { ServiceError } from './errors.js';

/**
 * The JSON object that a stream holds, read to its end.
 *
 * @throws ServiceError MESSAGE_TOO_LARGE beyond `maxBytes`, INVALID_REQUEST when it is no JSON object; the text is never
 *   quoted, because it may hold a secret
 */
export async function readJsonObject(input: Readable, maxBytes: number): Promise<object> {
  const blocks: Buffer[] = [];
  let length = 0;
  for await (const block of input as AsyncIterable<Buffer>) {
    length += block.length;
    if (length > maxBytes) throw new ServiceError('MESSAGE_TOO_LARGE', `the input is longer than ${maxBytes} bytes`);
    blocks.push(block);
  }
  try {
    const value: unknown = JSON.parse(Buffer.concat(blocks).toString('utf8'));
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value;
  } catch {
    // The parser's message would quote the input.
  }
  throw new ServiceError('INVALID_REQUEST', 'the input is not a JSON object');
}
