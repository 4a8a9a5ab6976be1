// Every message: whatever bytes come, a decoder gives a MuserError or a value, and a value means the same when it is
// encoded and decoded again.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import {
  decodeCertificateOrder,
  decodeCertificateRequest,
  decodeIssuedCertificate,
  decodeNodeStatus,
  decodeProducerList,
  decodeRevokedNodes,
  decodeSetPausedRequest,
  decodeWatchNodeRequest,
  decodeWatchProducersRequest,
} from '../src/codec.js';
import { SCHEMAS } from '../src/messages.js';
import { decodePrefillRequest, encodePrefillRequest } from '../src/request.js';
import type { Schema } from '../src/wire/schema.js';
import { valueOf } from './support.js';

const schemas = Object.values(SCHEMAS) as unknown as readonly Schema<unknown>[];
const requests: readonly ((bytes: Uint8Array) => unknown)[] = [
  decodeCertificateOrder,
  decodeCertificateRequest,
  decodeIssuedCertificate,
  decodeNodeStatus,
  decodeProducerList,
  decodeRevokedNodes,
  decodeSetPausedRequest,
  decodeWatchNodeRequest,
  decodeWatchProducersRequest,
];

/** The first byte says which message; the rest is the message. */
export function fuzz(input: Buffer): void {
  const [kind = 0] = input;
  const bytes = input.subarray(1);
  const schema = schemas[kind % schemas.length];
  assert(schema !== undefined);
  const value = valueOf(() => schema.decode(bytes));
  if (value !== null) {
    const encoded = schema.encode(value.result);
    assert.deepEqual(schema.decode(encoded), value.result, 'means something else when it is encoded again');
    assert.deepEqual(schema.encode(schema.decode(encoded)), encoded, 'has two encodings');
  }
  for (const decode of requests) valueOf(() => decode(bytes));
  const request = valueOf(() => decodePrefillRequest(bytes))?.result;
  if (request !== undefined) {
    assert(request.heldTokens < request.tokens.length - 1, 'holds the whole prompt');
    encodePrefillRequest(request);
  }
}

/** Every message of the golden vectors, right and wrong ones. */
export function seeds(): [string, Buffer][] {
  const names = Object.keys(SCHEMAS);
  const vectors = JSON.parse(
    readFileSync(new URL('../../../proto/vectors/messages.json', import.meta.url), 'utf8'),
  ) as {
    valid: { message: string; encoded: string }[];
    refused: { message: string; encoded: string }[];
  };
  const all = [
    ...vectors.valid.map((v) => ({ ...v, how: 'valid' })),
    ...vectors.refused.map((v) => ({ ...v, how: 'refused' })),
  ];
  return all.map(({ message, encoded, how }, index) => [
    `${how}-${index}-${message}`,
    Buffer.concat([Buffer.from([names.indexOf(message)]), Buffer.from(encoded, 'hex')]),
  ]);
}
