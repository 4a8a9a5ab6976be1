import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { SCHEMAS } from '../src/messages.js';
import type { Schema } from '../src/wire/schema.js';
import { arbitraries } from './support/arbitraries.js';
import { expectCode } from './support/errors.js';
import { protobufjs, toProtobufjs } from './support/proto.js';

type Name = keyof typeof SCHEMAS;
const bytes = (length: number): Buffer => Buffer.alloc(length, 1);
const label = (length: number): string => 'a'.repeat(length);
const list = <T>(length: number, item: T): T[] => Array<T>(length).fill(item);
const anyOf: Record<string, fc.Arbitrary<unknown>> = arbitraries;
const sample = (name: Name): Record<string, unknown> =>
  fc.sample(anyOf[name] ?? fc.constant({}), { numRuns: 1, seed: 1 })[0] as Record<string, unknown>;

const part = { layer: 0, kind: 'k' };
const window = list(256, 'window');
const { nodeId } = sample('NodeStatus');
const entry = { ...sample('ProducerEntry'), name: 'a', addresses: ['a:1'], ticket: bytes(9) };
const absent = sample('UnavailableProducer');

/** [message, values at the limit, values one above it]. Only the named fields are changed. */
const upper: [Name, string, Record<string, unknown>, Record<string, unknown>][] = [
  ['Geometry', 'layers', { layers: window, windowTokens: 1 }, { layers: list(257, 'window'), windowTokens: 1 }],
  ['Geometry', 'kvHeads', { kvHeads: 256 }, { kvHeads: 257 }],
  ['Geometry', 'headDimension', { headDimension: 1024 }, { headDimension: 1026 }],
  ['Geometry', 'windowTokens', { layers: window, windowTokens: 131072 }, { layers: window, windowTokens: 131073 }],
  ['Geometry', 'vocabularySize', { vocabularySize: 2 ** 24 }, { vocabularySize: 2 ** 24 + 1 }],
  ['ModelIdentity', 'fingerprint', { fingerprint: bytes(32) }, { fingerprint: bytes(33) }],
  ['ModelIdentity', 'modelDigest', { modelDigest: bytes(32) }, { modelDigest: bytes(33) }],
  ['ModelIdentity', 'name', { name: label(128) }, { name: label(129) }],
  ['SignedBody', 'body', { body: bytes(8192) }, { body: bytes(8193) }],
  ['SignedBody', 'signature', { signature: bytes(64) }, { signature: bytes(65) }],
  ['Ticket', 'ticketId', { ticketId: bytes(16) }, { ticketId: bytes(17) }],
  ['Ticket', 'decoderId', {}, { decoderId: `n${label(27)}` }],
  ['Ticket', 'producerId', {}, { producerId: `n${label(27)}` }],
  ['Ticket', 'maxPromptTokens', { maxPromptTokens: 131072 }, { maxPromptTokens: 131073 }],
  ['PrefillRequest', 'nonce', { nonce: bytes(16) }, { nonce: bytes(17) }],
  ['PrefillRequest', 'ticket', { ticket: bytes(1024) }, { ticket: bytes(1025) }],
  ['PrefillRequest', 'tokens', { tokens: new Uint32Array(2 ** 17) }, { tokens: new Uint32Array(2 ** 17 + 1) }],
  ['PrefillRequest', 'heldTokens', { heldTokens: 131072 }, { heldTokens: 131073 }],
  ['PrefillRequest', 'heldDigest', { heldDigest: bytes(32) }, { heldDigest: bytes(33) }],
  ['PrefillRequest', 'wireTypes', { wireTypes: list(8, 'f16') }, { wireTypes: list(9, 'f16') }],
  ['PrefillRequest', 'deadlineMs', { deadlineMs: 3_600_000 }, { deadlineMs: 3_600_001 }],
  ['PrefillRequest', 'chunkTokens', { chunkTokens: 16384 }, { chunkTokens: 16385 }],
  ['Begin', 'endToken', { endToken: 131072 }, { endToken: 131073 }],
  ['Begin', 'firstToken', { firstToken: 131071, endToken: 131072 }, { firstToken: 131073, endToken: 131074 }],
  ['Begin', 'chunkTokens', { chunkTokens: 16384 }, { chunkTokens: 16385 }],
  ['Part', 'layer', { layer: 255 }, { layer: 256 }],
  ['ShardHeader', 'sequence', { sequence: 2 ** 32 - 1 }, {}],
  ['ShardHeader', 'chunkIndex', { chunkIndex: 131072 }, { chunkIndex: 131073 }],
  ['ShardHeader', 'chunkStart', { chunkStart: 131072 }, { chunkStart: 131073 }],
  ['ShardHeader', 'chunkEnd', { chunkEnd: 131072 }, { chunkEnd: 131073 }],
  ['ShardHeader', 'windowStart', { windowStart: 131072 }, { windowStart: 131073 }],
  ['ShardHeader', 'tokenStart', { tokenStart: 131072 }, { tokenStart: 131073 }],
  ['ShardHeader', 'tokenCount', { tokenCount: 16384 }, { tokenCount: 16385 }],
  ['ShardHeader', 'parts', { parts: list(512, part) }, { parts: list(513, part) }],
  ['ShardHeader', 'payloadBytes', { payloadBytes: 2 ** 20 }, { payloadBytes: 2 ** 20 + 1 }],
  ['Shard', 'header', { header: bytes(8192) }, { header: bytes(8193) }],
  ['Shard', 'payload', { payload: bytes(2 ** 20) }, { payload: bytes(2 ** 20 + 1) }],
  ['Progress', 'queuePosition', { queuePosition: 2 ** 20 }, { queuePosition: 2 ** 20 + 1 }],
  ['Progress', 'tokensPrefilled', { tokensPrefilled: 131072 }, { tokensPrefilled: 131073 }],
  ['Progress', 'tokensTotal', { tokensTotal: 131072 }, { tokensTotal: 131073 }],
  ['Seal', 'chunks', { chunks: 131072 }, { chunks: 131073 }],
  ['Seal', 'endToken', { endToken: 131072 }, { endToken: 131073 }],
  ['Seal', 'reusedTokens', { reusedTokens: 131072 }, { reusedTokens: 131073 }],
  ['ErrorFrame', 'code', { code: label(64) }, { code: label(65) }],
  ['ErrorFrame', 'message', { message: label(1024) }, { message: label(1025) }],
  ['NodeStatus', 'maxPromptTokens', { maxPromptTokens: 131072 }, { maxPromptTokens: 131073 }],
  ['NodeStatus', 'queueLength', { queueLength: 2 ** 20 }, { queueLength: 2 ** 20 + 1 }],
  ['NodeStatus', 'activeTransfers', { activeTransfers: 2 ** 20 }, { activeTransfers: 2 ** 20 + 1 }],
  ['NodeStatus', 'backend', { backend: label(128) }, { backend: label(129) }],
  ['NodeStatus', 'version', { version: label(64) }, { version: label(65) }],
  ['WatchNodeRequest', 'intervalMs', { intervalMs: 60_000 }, { intervalMs: 60_001 }],
  ['SetPausedRequest', 'deadlineMs', { deadlineMs: 3_600_000 }, { deadlineMs: 3_600_001 }],
  ['RevokedNodes', 'nodeIds', { nodeIds: list(4096, nodeId) }, { nodeIds: list(4097, nodeId) }],
  ['CertificateRequest', 'csr', { csr: bytes(4096) }, { csr: bytes(4097) }],
  ['IssuedCertificate', 'certificate', { certificate: bytes(4096) }, { certificate: bytes(4097) }],
  ['CertificateInstalled', 'serial', { serial: label(64) }, { serial: label(65) }],
  ['ProducerList', 'renewOrder', { renewOrder: label(64) }, { renewOrder: label(65) }],
  ['WatchProducersRequest', 'name', { name: label(128) }, { name: label(129) }],
  ['ProducerEntry', 'name', { name: label(128) }, { name: label(129) }],
  ['ProducerEntry', 'addresses', { addresses: list(16, label(256)) }, { addresses: list(17, 'a') }],
  ['ProducerEntry', 'an address', { addresses: [label(256)] }, { addresses: [label(257)] }],
  ['ProducerEntry', 'ticket', { ticket: bytes(1024) }, { ticket: bytes(1025) }],
  ['ProducerEntry', 'backend', { backend: label(128) }, { backend: label(129) }],
  ['UnavailableProducer', 'name', { name: label(128) }, { name: label(129) }],
  ['ProducerList', 'producers', { producers: list(256, entry) }, { producers: list(257, entry) }],
  ['ProducerList', 'unavailable', { unavailable: list(256, absent) }, { unavailable: list(257, absent) }],
];

/** [message, values at the lowest, values below it]. */
const lower: [Name, string, Record<string, unknown>, Record<string, unknown>][] = [
  ['Geometry', 'layers', { layers: ['global'], windowTokens: 0 }, { layers: [], windowTokens: 0 }],
  ['Geometry', 'kvHeads', { kvHeads: 1 }, { kvHeads: 0 }],
  ['Geometry', 'headDimension', { headDimension: 2 }, { headDimension: 0 }],
  ['Geometry', 'odd headDimension', { headDimension: 4 }, { headDimension: 3 }],
  ['Geometry', 'window', { layers: window, windowTokens: 1 }, { layers: window, windowTokens: 0 }],
  ['Geometry', 'no window', { layers: ['global'], windowTokens: 0 }, { layers: ['global'], windowTokens: 1 }],
  ['Geometry', 'vocabularySize', { vocabularySize: 1 }, { vocabularySize: 0 }],
  ['SignedBody', 'body', { body: bytes(1) }, { body: bytes(0) }],
  ['SignedBody', 'signature', { signature: bytes(64) }, { signature: bytes(63) }],
  ['Ticket', 'ticketId', { ticketId: bytes(16) }, { ticketId: bytes(15) }],
  ['Ticket', 'decoderId', {}, { decoderId: label(27) }],
  ['Ticket', 'producerId', {}, { producerId: '' }],
  ['Ticket', 'maxPromptTokens', { maxPromptTokens: 2 }, { maxPromptTokens: 1 }],
  ['PrefillRequest', 'nonce', { nonce: bytes(16) }, { nonce: bytes(15) }],
  ['PrefillRequest', 'ticket', { ticket: bytes(1) }, { ticket: bytes(0) }],
  ['PrefillRequest', 'tokens', { tokens: new Uint32Array(2) }, { tokens: new Uint32Array(1) }],
  ['PrefillRequest', 'wireTypes', { wireTypes: ['f16'] }, { wireTypes: [] }],
  ['PrefillRequest', 'deadlineMs', { deadlineMs: 1 }, { deadlineMs: 0 }],
  ['Begin', 'endToken', { firstToken: 5, endToken: 6 }, { firstToken: 6, endToken: 6 }],
  ['Begin', 'chunkTokens', { chunkTokens: 1 }, { chunkTokens: 0 }],
  ['Begin', 'requestDigest', { requestDigest: bytes(32) }, { requestDigest: bytes(31) }],
  ['Begin', 'producerId', {}, { producerId: `n${'1'.repeat(26)}` }],
  ['ShardHeader', 'tokenCount', { tokenCount: 1 }, { tokenCount: 0 }],
  ['ShardHeader', 'parts', { parts: [part] }, { parts: [] }],
  ['ShardHeader', 'payloadBytes', { payloadBytes: 1 }, { payloadBytes: 0 }],
  ['ShardHeader', 'payloadSha256', { payloadSha256: bytes(32) }, { payloadSha256: bytes(0) }],
  ['Shard', 'header', { header: bytes(1) }, { header: bytes(0) }],
  ['Shard', 'signature', { signature: bytes(64) }, { signature: bytes(0) }],
  ['Shard', 'payload', { payload: bytes(1) }, { payload: bytes(0) }],
  ['Seal', 'shards', { shards: 1 }, { shards: 0 }],
  ['Seal', 'chunks', { chunks: 1 }, { chunks: 0 }],
  ['Seal', 'prefillEndUs', { prefillStartUs: 5, prefillEndUs: 5 }, { prefillStartUs: 6, prefillEndUs: 5 }],
  ['ErrorFrame', 'code', { code: 'A' }, { code: '' }],
  ['WatchNodeRequest', 'protocolVersion', {}, { protocolVersion: 0 }],
  ['WatchNodeRequest', 'intervalMs', { intervalMs: 100 }, { intervalMs: 99 }],
  ['SetPausedRequest', 'protocolVersion', {}, { protocolVersion: 0 }],
  ['SetPausedRequest', 'deadlineMs', { deadlineMs: 1 }, { deadlineMs: 0 }],
  ['RevokedNodes', 'protocolVersion', {}, { protocolVersion: 0 }],
  ['RevokedNodes', 'nodeIds', { nodeIds: [] }, { nodeIds: ['x'] }],
  ['CertificateOrder', 'protocolVersion', {}, { protocolVersion: 0 }],
  ['CertificateRequest', 'proof', { proof: bytes(64) }, { proof: bytes(63) }],
  ['CertificateRequest', 'csr', { csr: bytes(1) }, { csr: bytes(0) }],
  ['IssuedCertificate', 'certificate', { certificate: bytes(1) }, { certificate: bytes(0) }],
  ['CertificateInstalled', 'serial', { serial: 'A' }, { serial: '' }],
  ['ProducerEntry', 'addresses', { addresses: [] }, { addresses: [''] }],
  ['ProducerEntry', 'signingPublicKey', { signingPublicKey: bytes(32) }, { signingPublicKey: bytes(31) }],
  ['ProducerEntry', 'ticket', { ticket: bytes(1) }, { ticket: bytes(0) }],
  ['ProducerEntry', 'nodeId', {}, { nodeId: 'x' }],
];

async function check(name: Name, at: object, beyond: object, code: RegExp): Promise<void> {
  const schema = SCHEMAS[name] as unknown as Schema<unknown>;
  const within = { ...sample(name), ...at };
  expect(schema.encode(schema.decode(schema.encode(within))).equals(schema.encode(within))).toBe(true);
  if (Object.keys(beyond).length === 0) return;
  const outside = { ...sample(name), ...beyond };
  expect(await codeOf(() => schema.encode(outside))).toMatch(code);
  const sent = protobufjs(name).serialize(toProtobufjs(name, outside));
  expect(await codeOf(() => schema.decode(sent))).toMatch(code);
}

async function codeOf(call: () => unknown): Promise<string> {
  try {
    call();
  } catch (thrown) {
    return (thrown as { code: string }).code;
  }
  return 'accepted';
}

describe('every limit', () => {
  it.each(upper)('%s: %s at its limit and one above', (name, _, at, beyond) =>
    check(name, at, beyond, /^MESSAGE_(TOO_LARGE|INVALID)$/),
  );
  it.each(lower)('%s: %s at its least and one below', (name, _, at, beyond) =>
    check(name, at, beyond, /^MESSAGE_INVALID$/),
  );

  it.each(Object.keys(SCHEMAS) as Name[])('%s refuses more bytes than its limit', async (name) => {
    const schema = SCHEMAS[name];
    await expectCode(() => schema.decode(Buffer.alloc(schema.maxBytes + 1)), 'MESSAGE_TOO_LARGE');
  });

  it('lets the largest Shard through in a frame of 2 MiB at most', () => {
    const value = { header: bytes(8192), signature: bytes(64), payload: bytes(2 ** 20) };
    const encoded = SCHEMAS.PrefillFrame.encode({ kind: 'shard', value });
    expect(SCHEMAS.PrefillFrame.decode(encoded).kind).toBe('shard');
    expect(encoded.length).toBeLessThan(2 ** 20 + 8192 + 100);
  });
});
