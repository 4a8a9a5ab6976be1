import { readFileSync } from 'node:fs';
import nacl from 'tweetnacl';
import { describe, expect, it } from 'vitest';
import { fingerprintOf, type Geometry } from '../src/geometry.js';
import { nodeIdOf } from '../src/ids.js';
import { signedBytes, signingKeyFromSeed, verifyingKey, type Domain } from '../src/keys.js';
import { SCHEMAS } from '../src/messages.js';
import { decodePrefillRequest, requestDigestOf, tokensDigest } from '../src/request.js';
import { openTicket } from '../src/ticket.js';
import { TransferReceiver } from '../src/transfer/receiver.js';
import type { Schema } from '../src/wire/schema.js';
import type { ErrorCode } from '../src/errors.js';
import { expectCode } from './support/errors.js';

// The files are read, never written, here: scripts/write-vectors.mjs makes them.
const read = <T>(name: string): T =>
  JSON.parse(readFileSync(new URL(`../../../proto/vectors/${name}.json`, import.meta.url), 'utf8')) as T;
const bytes = (hex: string): Buffer => Buffer.from(hex, 'hex');

interface SignatureVector {
  publicKey: string;
  domain: Domain;
  parts: string[];
  signature: string;
}
interface MessageVector {
  message: keyof typeof SCHEMAS;
  encoded: string;
}

const keys = read<{
  keys: { name: string; seed: string; publicKey: string; nodeId: string }[];
  refused: { publicKey: string; why: string }[];
}>('keys');
const signatures = read<{
  valid: (SignatureVector & { seed: string; signedBytes: string })[];
  refused: (SignatureVector & { why: string })[];
}>('signatures');
const prints = read<{
  fingerprints: { geometry: Geometry; tokenizerSha256: string; fingerprint: string }[];
  tokenDigests: { tokens: number[]; digest: string }[];
}>('fingerprints');
const encodings = read<{
  valid: (MessageVector & { value: unknown })[];
  acceptedToo: (MessageVector & { sameAs: string; why: string })[];
  refused: (MessageVector & { code: ErrorCode; why: string })[];
}>('messages');
const transfer = read<{
  producerPublicKey: string;
  coordinatorPublicKey: string;
  request: string;
  requestDigest: string;
  requestValue: unknown;
  ticketValue: unknown;
  begin: unknown;
  headers: unknown[];
  chunks: unknown[];
  seal: unknown;
  messages: string[];
}>('transfer');

function plain(value: unknown): unknown {
  if (value instanceof Uint32Array) return [...value];
  if (value instanceof Uint8Array) return Buffer.from(value).toString('hex');
  if (Array.isArray(value)) return value.map(plain);
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, plain(item)]));
}

describe('golden vectors of keys', () => {
  it.each(keys.keys)('$name', ({ seed, publicKey, nodeId }) => {
    expect(plain(signingKeyFromSeed(bytes(seed)).publicKey)).toBe(publicKey);
    expect(plain(verifyingKey(bytes(publicKey)).publicKey)).toBe(publicKey);
    expect(nodeIdOf(bytes(publicKey))).toBe(nodeId);
  });

  it.each(keys.refused)('refused: $why ($publicKey)', ({ publicKey }) =>
    expectCode(() => verifyingKey(bytes(publicKey)), 'SIGNATURE_INVALID').then(() => undefined),
  );
});

describe('golden vectors of signatures', () => {
  it.each(signatures.valid)('$domain', (vector) => {
    const parts = vector.parts.map(bytes);
    expect(plain(signedBytes(vector.domain, parts))).toBe(vector.signedBytes);
    expect(plain(signingKeyFromSeed(bytes(vector.seed)).sign(vector.domain, ...parts))).toBe(vector.signature);
    verifyingKey(bytes(vector.publicKey)).verify(vector.domain, parts, bytes(vector.signature));
  });

  // promise: A signature in any other form than the one the key makes is refused.
  it.each(signatures.refused)('refused: $why', ({ publicKey, domain, parts, signature }) => {
    const key = verifyingKey(bytes(publicKey));
    return expectCode(() => key.verify(domain, parts.map(bytes), bytes(signature)), 'SIGNATURE_INVALID').then(
      () => undefined,
    );
  });

  // promise: A malleated signature is refused.
  it('have a malleated one that satisfies the equation, so that it is refused for its S alone', () => {
    const vector = signatures.refused.find(({ why }) => why.startsWith('malleated'));
    if (vector === undefined) throw new Error('no such vector');
    const message = signedBytes(vector.domain, vector.parts.map(bytes));
    expect(nacl.sign.detached.verify(message, bytes(vector.signature), bytes(vector.publicKey))).toBe(true);
  });
});

describe('golden vectors of fingerprints', () => {
  it.each(prints.fingerprints)('$fingerprint', ({ geometry, tokenizerSha256, fingerprint }) => {
    expect(plain(fingerprintOf({ geometry, tokenizerSha256: bytes(tokenizerSha256) }))).toBe(fingerprint);
  });

  it.each(prints.tokenDigests)('tokens $tokens', ({ tokens, digest }) => {
    expect(plain(tokensDigest(Uint32Array.from(tokens), tokens.length))).toBe(digest);
  });
});

describe('golden vectors of messages', () => {
  const schemaOf = (message: keyof typeof SCHEMAS) => SCHEMAS[message] as unknown as Schema<unknown>;

  it('are there for every message', () => {
    expect(new Set(encodings.valid.map(({ message }) => message))).toEqual(new Set(Object.keys(SCHEMAS)));
  });

  it.each(encodings.valid)('$message', ({ message, value, encoded }) => {
    const decoded = schemaOf(message).decode(bytes(encoded));
    expect(plain(decoded)).toEqual(value);
    expect(plain(schemaOf(message).encode(decoded))).toBe(encoded);
  });

  it.each(encodings.acceptedToo)('accepted too: $why', ({ message, encoded, sameAs }) => {
    expect(schemaOf(message).decode(bytes(encoded))).toEqual(schemaOf(message).decode(bytes(sameAs)));
  });

  it.each(encodings.refused)('refused: $message with $why', ({ message, encoded, code }) =>
    expectCode(() => schemaOf(message).decode(bytes(encoded)), code).then(() => undefined),
  );
});

describe('the golden transfer', () => {
  const request = decodePrefillRequest(bytes(transfer.request));

  function receiver(): TransferReceiver {
    const begin = SCHEMAS.PrefillFrame.decode(bytes(transfer.messages[0] ?? ''));
    if (begin.kind !== 'begin') throw new Error('the first message is not Begin');
    const { geometry, producerId } = SCHEMAS.Begin.decode(begin.value.body);
    return new TransferReceiver({
      nonce: request.nonce,
      requestDigest: requestDigestOf(bytes(transfer.request)),
      expect: {
        producerId,
        producerKey: verifyingKey(bytes(transfer.producerPublicKey)),
        fingerprint: request.fingerprint,
        geometry,
        wireTypes: request.wireTypes,
        firstToken: request.heldTokens,
        endToken: request.tokens.length - 1,
      },
    });
  }

  it('has a request and a ticket that read as they should', () => {
    expect(plain(request)).toEqual(transfer.requestValue);
    expect(plain(requestDigestOf(bytes(transfer.request)))).toBe(transfer.requestDigest);
    const opened = openTicket(request.ticket, verifyingKey(bytes(transfer.coordinatorPublicKey)));
    expect(plain(opened)).toEqual(transfer.ticketValue);
  });

  it('is received as it should be', async () => {
    const own = receiver();
    const headers: unknown[] = [];
    const chunks: unknown[] = [];
    for (const message of transfer.messages) {
      const event = await own.accept(bytes(message));
      if (event.type === 'begin') expect(plain(event.begin)).toEqual(transfer.begin);
      if (event.type === 'sealed') expect(plain(event.seal)).toEqual(transfer.seal);
      if (event.type !== 'shard') continue;
      headers.push(plain(event.header));
      if (event.chunkComplete !== null) chunks.push(event.chunkComplete);
    }
    own.end();
    expect(headers).toEqual(transfer.headers);
    expect(chunks).toEqual(transfer.chunks);
  });

  it('is refused in any other order', async () => {
    const [begin = '', ...rest] = transfer.messages;
    for (let left = 1; left < rest.length; left++) {
      const own = receiver();
      await own.accept(bytes(begin));
      const shuffled = [...rest.slice(0, left - 1), rest[left] ?? '', rest[left - 1] ?? '', ...rest.slice(left + 1)];
      // Progress may stand anywhere between Begin and Seal.
      const mayPass = left === 1;
      let refused = false;
      for (const message of shuffled) {
        await own.accept(bytes(message)).catch(() => {
          refused = true;
        });
      }
      expect(refused).toBe(!mayPass);
    }
  });
});
