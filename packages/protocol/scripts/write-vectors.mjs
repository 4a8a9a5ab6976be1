// Writes proto/vectors/*.json: what every implementation of the protocol must reproduce and refuse. All bytes are hex.
// Signatures are made by tweetnacl, which shares no code with the verifier of this package. Everything follows from
// fixed seeds, so a second run changes nothing; a change in the files is a change of the protocol.
// Build first; then: node scripts/write-vectors.mjs
import { createHash } from 'node:crypto';
import { mkdirSync, writeFileSync } from 'node:fs';
import nacl from 'tweetnacl';
import { fingerprintOf } from '../dist/geometry.js';
import { nodeIdOf } from '../dist/ids.js';
import * as messages from '../dist/messages.js';
import { encodePrefillRequest, requestDigestOf, tokensDigest } from '../dist/request.js';
import { planChunkShards, windowStartOf } from '../dist/transfer/plan.js';

const hex = (bytes) => Buffer.from(bytes).toString('hex');
const sha256 = (...parts) => parts.reduce((hash, part) => hash.update(part), createHash('sha256')).digest();
/** Bytes that look random and are the same each time. */
function bytesOf(label, length) {
  const blocks = [];
  for (let i = 0; i * 32 < length; i++) blocks.push(sha256(Buffer.from(`${label}/${i}`)));
  return Buffer.concat(blocks).subarray(0, length);
}
function u32(value) {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value);
  return bytes;
}
const prefixed = (parts) => Buffer.concat(parts.flatMap((part) => [u32(part.length), part]));
/** The signed bytes, written out here once more, independently of keys.ts. */
const toSign = (domain, parts) => prefixed([Buffer.from(domain), ...parts]);

function keyOf(label) {
  const seed = bytesOf(label, 32);
  const pair = nacl.sign.keyPair.fromSeed(seed);
  const sign = (domain, ...parts) => Buffer.from(nacl.sign.detached(toSign(domain, parts), pair.secretKey));
  return { seed, publicKey: Buffer.from(pair.publicKey), sign, nodeId: nodeIdOf(pair.publicKey) };
}
const producer = keyOf('producer');
const decoder = keyOf('decoder');
const coordinator = keyOf('coordinator');
const stranger = keyOf('stranger');
const everyKey = { producer, decoder, coordinator, stranger };

/** Bytes as hex and typed arrays as lists, so that a value can be written as JSON. */
function plain(value) {
  if (value instanceof Uint32Array) return [...value];
  if (value instanceof Uint8Array) return hex(value);
  if (Array.isArray(value)) return value.map(plain);
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, plain(item)]));
}

function write(name, content) {
  const folder = new URL('../../../proto/vectors/', import.meta.url);
  mkdirSync(folder, { recursive: true });
  writeFileSync(new URL(`${name}.json`, folder), `${JSON.stringify(content, null, 2)}\n`);
}

// Keys.
const P = 2n ** 255n - 19n;
const littleEndian = (value) => Buffer.from(value.toString(16).padStart(64, '0'), 'hex').reverse();
const withSign = (y) => littleEndian(y | (1n << 255n));
const ORDER_8_Y = 2707385501144840649318225287225658788936804267575313519463743609750303402022n;
const smallOrder = [0n, 1n, P - 1n, ORDER_8_Y, P - ORDER_8_Y];
const refusedKeys = [
  ...smallOrder.map((y) => ({ publicKey: hex(littleEndian(y)), why: 'small order' })),
  ...smallOrder.map((y) => ({ publicKey: hex(withSign(y)), why: 'small order, sign bit set' })),
  ...[0n, 1n, 3n, 18n].map((above) => ({ publicKey: hex(littleEndian(P + above)), why: 'y is not below p' })),
  ...[0n, 1n, 3n].map((above) => ({ publicKey: hex(withSign(P + above)), why: 'y is not below p, sign bit set' })),
  { publicKey: hex(littleEndian(2n)), why: 'not a point of the curve' },
  { publicKey: hex(producer.publicKey.subarray(1)), why: '31 bytes' },
  { publicKey: `${hex(producer.publicKey)}00`, why: '33 bytes' },
];
write('keys', {
  keys: Object.entries(everyKey).map(([name, key]) => ({
    name,
    seed: hex(key.seed),
    publicKey: hex(key.publicKey),
    nodeId: key.nodeId,
  })),
  refused: refusedKeys,
});

// Signatures.
const nonce = bytesOf('nonce', 16);
const otherNonce = bytesOf('other nonce', 16);
const body = bytesOf('body', 100);
const signature = producer.sign('muser/1/shard', nonce, body);
const L = 2n ** 252n + 27742317777372353535851937790883648493n;
const scalar = BigInt(`0x${hex(Buffer.from(signature.subarray(32)).reverse())}`);
const malleated = Buffer.concat([signature.subarray(0, 32), littleEndian(scalar + L)]);
if (!nacl.sign.detached.verify(toSign('muser/1/shard', [nonce, body]), malleated, producer.publicKey)) {
  throw new Error('the malleated signature should satisfy the equation of verification');
}
// The holder of a key can sign with the neutral point as R: S = k a. Written with y = p + 1, or with a sign that x = 0 does
// not have, R is the same point in bytes that no signer makes.
const sha512 = (...parts) => createHash('sha512').update(Buffer.concat(parts)).digest();
const numberOf = (bytes) => BigInt(`0x${hex(Buffer.from(bytes).reverse())}`);
const secret = sha512(producer.seed).subarray(0, 32);
secret[0] &= 248;
secret[31] = (secret[31] & 127) | 64;
function signedWith(r) {
  const k = numberOf(sha512(r, producer.publicKey, toSign('muser/1/shard', [nonce, body]))) % L;
  return Buffer.concat([r, littleEndian((k * numberOf(secret)) % L)]);
}
if (
  !nacl.sign.detached.verify(toSign('muser/1/shard', [nonce, body]), signedWith(littleEndian(1n)), producer.publicKey)
) {
  throw new Error('the equation of verification should hold for the neutral point');
}
const base = { publicKey: hex(producer.publicKey), domain: 'muser/1/shard', parts: [hex(nonce), hex(body)] };
const flipped = Buffer.from(signature);
flipped[40] ^= 1;
write('signatures', {
  valid: ['begin', 'shard', 'seal', 'ticket', 'csr'].map((name) => {
    const domain = `muser/1/${name}`;
    const parts = name === 'ticket' || name === 'csr' ? [body] : [nonce, body];
    return {
      ...base,
      seed: hex(producer.seed),
      domain,
      parts: parts.map(hex),
      signedBytes: hex(toSign(domain, parts)),
      signature: hex(producer.sign(domain, ...parts)),
    };
  }),
  refused: [
    { ...base, signature: hex(malleated), why: 'malleated: S + L in place of S' },
    { ...base, signature: hex(flipped), why: 'a bit of S is changed' },
    { ...base, domain: 'muser/1/seal', signature: hex(signature), why: 'signed for another domain' },
    { ...base, parts: [hex(otherNonce), hex(body)], signature: hex(signature), why: 'signed for another nonce' },
    { ...base, parts: [hex(nonce) + hex(body)], signature: hex(signature), why: 'the parts are joined' },
    { ...base, parts: [hex(body), hex(nonce)], signature: hex(signature), why: 'the parts are exchanged' },
    { ...base, publicKey: hex(stranger.publicKey), signature: hex(signature), why: 'signed by another key' },
    { ...base, signature: hex(signature.subarray(0, 63)), why: '63 bytes' },
    { ...base, signature: `${hex(signature)}00`, why: '65 bytes' },
    {
      ...base,
      signature: hex(Buffer.concat([littleEndian(1n), Buffer.alloc(32)])),
      why: 'R is the neutral point, S is 0',
    },
    { ...base, signature: hex(Buffer.alloc(64)), why: 'all zero' },
    { ...base, signature: hex(signedWith(littleEndian(P + 1n))), why: 'the equation holds, but y of R is p + 1' },
    { ...base, signature: hex(signedWith(withSign(1n))), why: 'the equation holds, but R has the sign of no point' },
    {
      ...base,
      signature: hex(Buffer.concat([littleEndian(2n), signature.subarray(32)])),
      why: 'R is not a point of the curve',
    },
    { ...base, signature: hex(Buffer.concat([signature.subarray(0, 32), littleEndian(L)])), why: 'S is L' },
    {
      ...base,
      signature: hex(Buffer.concat([signature.subarray(0, 32), Buffer.alloc(32, 255)])),
      why: 'S is 2^256 - 1',
    },
  ],
});

// Fingerprints.
const geometry = {
  layers: ['window', 'window', 'window', 'global'],
  kvHeads: 2,
  headDimension: 8,
  windowTokens: 8,
  ropeBase: 500000,
  ropeLayers: 'window',
  vocabularySize: 1000,
};
const globalOnly = { ...geometry, layers: ['global'], windowTokens: 0, ropeBase: 10000.5, ropeLayers: 'all' };
const large = {
  layers: Array.from({ length: 52 }, (_, layer) => (layer % 4 === 3 ? 'global' : 'window')),
  kvHeads: 2,
  headDimension: 128,
  windowTokens: 2048,
  ropeBase: 500000,
  ropeLayers: 'window',
  vocabularySize: 202048,
};
const tokenizerSha256 = bytesOf('tokenizer', 32);
write('fingerprints', {
  fingerprints: [geometry, globalOnly, large].map((of) => ({
    geometry: of,
    tokenizerSha256: hex(tokenizerSha256),
    fingerprint: hex(fingerprintOf({ geometry: of, tokenizerSha256 })),
  })),
  tokenDigests: [[], [0], [1, 2, 4294967295]].map((tokens) => ({
    tokens,
    digest: hex(tokensDigest(Uint32Array.from(tokens), tokens.length)),
  })),
});

// A complete transfer.
const fingerprint = fingerprintOf({ geometry, tokenizerSha256 });
const decoderModel = bytesOf('decoder model', 32);
const producerModel = bytesOf('producer model', 32);
const ticketValue = {
  ticketId: bytesOf('ticket', 16),
  decoderId: decoder.nodeId,
  producerId: producer.nodeId,
  fingerprint,
  decoderModel,
  producerModel,
  maxPromptTokens: 4096,
  issuedAtMs: 1800000000000,
  expiresAtMs: 1800000900000,
};
const ticketBody = messages.ticketSchema.encode(ticketValue);
const ticket = messages.signedBodySchema.encode({
  body: ticketBody,
  signature: coordinator.sign('muser/1/ticket', ticketBody),
});
const tokens = Uint32Array.from({ length: 31 }, (_, i) => (i * 37) % 1000);
const request = {
  protocolVersion: 1,
  nonce,
  ticket,
  fingerprint,
  decoderModel,
  tokens,
  heldTokens: 4,
  heldDigest: tokensDigest(tokens, 4),
  wireTypes: ['bf16', 'f16'],
  deadlineMs: 60000,
  chunkTokens: 12,
};
const requestBytes = encodePrefillRequest(request);
const requestDigest = requestDigestOf(requestBytes);
const begin = {
  producerId: producer.nodeId,
  requestDigest,
  fingerprint,
  producerModel,
  geometry,
  wireType: 'bf16',
  firstToken: 4,
  endToken: 30,
  chunkTokens: 12,
  nonce,
};
const signed = (kind, encoded) => ({
  kind,
  value: { body: encoded, signature: producer.sign(`muser/1/${kind}`, nonce, encoded) },
});
const frames = [
  signed('begin', messages.beginSchema.encode(begin)),
  { kind: 'progress', value: { queuePosition: 0, tokensPrefilled: 12, tokensTotal: 31 } },
];
const headers = [];
const chunks = [];
for (const [chunkIndex, [chunkStart, chunkEnd, skip]] of [
  [4, 10, false],
  [10, 22, true],
  [22, 30, false],
].entries()) {
  const windowStart = skip ? chunkEnd : windowStartOf(geometry, 4, chunkStart, chunkEnd);
  chunks.push({ start: chunkStart, end: chunkEnd, windowStart, resumePoint: chunkIndex !== 1 });
  const range = { chunkStart, chunkEnd, windowStart };
  for (const plan of planChunkShards({ geometry, wireType: 'bf16', ...range }, 512)) {
    const payload = bytesOf(`payload/${headers.length}`, plan.payloadBytes);
    const header = { sequence: headers.length, chunkIndex, ...range, ...plan, payloadSha256: sha256(payload) };
    headers.push(header);
    const encoded = messages.shardHeaderSchema.encode(header);
    const value = { header: encoded, signature: producer.sign('muser/1/shard', nonce, encoded), payload };
    frames.push({ kind: 'shard', value });
  }
}
const encodedHeaders = headers.map((header) => messages.shardHeaderSchema.encode(header));
const seal = {
  requestDigest,
  shards: headers.length,
  payloadBytes: headers.reduce((total, header) => total + header.payloadBytes, 0),
  chunks: chunks.length,
  endToken: 30,
  headersDigest: sha256(prefixed(encodedHeaders)),
  prefillStartUs: 1500,
  prefillEndUs: 250000,
  queueUs: 1200,
  reusedTokens: 4,
};
frames.push(signed('seal', messages.sealSchema.encode(seal)));
const encodedFrames = frames.map((frame) => messages.frameSchema.encode(frame));
write('transfer', {
  producerPublicKey: hex(producer.publicKey),
  coordinatorPublicKey: hex(coordinator.publicKey),
  request: hex(requestBytes),
  requestDigest: hex(requestDigest),
  requestValue: plain(request),
  ticketValue: plain(ticketValue),
  begin: plain(begin),
  headers: plain(headers),
  chunks,
  seal: plain(seal),
  messages: encodedFrames.map(hex),
});

// Messages, and bytes that must be refused.
const identity = { fingerprint, modelDigest: producerModel, name: 'nano' };
const values = {
  Geometry: geometry,
  ModelIdentity: identity,
  SignedBody: { body: bytesOf('x', 3), signature: bytesOf('y', 64) },
  Ticket: ticketValue,
  PrefillRequest: request,
  Begin: begin,
  Part: { layer: 0, kind: 'v' },
  ShardHeader: headers[0],
  Shard: { header: bytesOf('h', 5), signature: bytesOf('y', 64), payload: bytesOf('p', 4) },
  Progress: { queuePosition: 0, tokensPrefilled: 300, tokensTotal: 131072 },
  Seal: seal,
  ErrorFrame: { code: 'QUEUE_FULL', message: 'queue has 16 of 16 – später', retryable: true },
  PrefillFrame: frames[1],
  NodeStatus: {
    nodeId: producer.nodeId,
    state: 'ready',
    model: identity,
    geometry,
    maxPromptTokens: 32768,
    queueLength: 0,
    activeTransfers: 1,
    prefillTokensPerSecond: 1234.5,
    backend: 'llama',
    version: '0.1.0',
    sentAtMs: 9007199254740991,
    reason: 'the worker ended too often',
    unloaded: true,
  },
  WatchNodeRequest: { protocolVersion: 1, intervalMs: 1000 },
  SetPausedRequest: { protocolVersion: 1, paused: true, cancelRunning: true, deadlineMs: 600000 },
  RevokedNodes: { protocolVersion: 1, version: 3, nodeIds: [decoder.nodeId, stranger.nodeId] },
  RevokedNodesTaken: { version: 3 },
  CertificateOrder: { protocolVersion: 1 },
  CertificateRequest: {
    protocolVersion: 1,
    signingPublicKey: decoder.publicKey,
    csr: body,
    proof: decoder.sign('muser/1/csr', body),
  },
  IssuedCertificate: { protocolVersion: 1, certificate: body },
  CertificateInstalled: { serial: '4F00C0FFEE' },
  WatchProducersRequest: { protocolVersion: 1, model: identity, name: 'mac' },
  ProducerEntry: {
    nodeId: producer.nodeId,
    name: 'spark',
    addresses: ['10.0.0.2:7700', '[fe80::1]:7700'],
    signingPublicKey: producer.publicKey,
    producerModel,
    state: 'draining',
    queueLength: 2,
    prefillTokensPerSecond: 0,
    maxPromptTokens: 32768,
    ticket,
    ticketExpiresAtMs: 1800000900000,
    backend: 'vllm',
  },
  UnavailableProducer: { nodeId: stranger.nodeId, name: 'attic', reason: 'unreachable' },
};
values.ProducerList = {
  coordinatorTimeMs: 1800000000000,
  producers: [values.ProducerEntry],
  renewOrder: '4F00C0FFEE',
  unavailable: [values.UnavailableProducer],
};
const encodings = Object.entries(values).map(([message, value]) => ({
  message,
  value: plain(value),
  encoded: hex(messages.SCHEMAS[message].encode(value)),
}));
const progressHex = '08021003';
write('messages', {
  valid: [
    ...encodings,
    { message: 'Progress', value: { queuePosition: 0, tokensPrefilled: 0, tokensTotal: 0 }, encoded: '' },
  ],
  acceptedToo: [
    { message: 'Progress', sameAs: progressHex, encoded: '10030802', why: 'fields in another order' },
    { message: 'Progress', sameAs: progressHex, encoded: '080210031800', why: 'a default that is written out' },
    { message: 'Progress', sameAs: progressHex, encoded: `${progressHex}f2010161`, why: 'a field that is not known' },
  ],
  refused: [
    { message: 'Progress', encoded: '08020803', code: 'MESSAGE_INVALID', why: 'a field twice' },
    { message: 'Progress', encoded: '0a0102', code: 'MESSAGE_INVALID', why: 'wrong wire type' },
    { message: 'Progress', encoded: '0880', code: 'MESSAGE_INVALID', why: 'a cut varint' },
    { message: 'Progress', encoded: '088200', code: 'MESSAGE_INVALID', why: 'a varint longer than needed' },
    { message: 'Progress', encoded: '10818008', code: 'MESSAGE_TOO_LARGE', why: '131073 tokens' },
    { message: 'Progress', encoded: '0b0c', code: 'MESSAGE_INVALID', why: 'a group' },
    { message: 'Progress', encoded: '0001', code: 'MESSAGE_INVALID', why: 'field number 0' },
    { message: 'Part', encoded: '0801', code: 'MESSAGE_INVALID', why: 'no kind' },
    { message: 'Part', encoded: '08011003', code: 'MESSAGE_INVALID', why: 'an unknown kind' },
    { message: 'SignedBody', encoded: '0affffffff7f', code: 'MESSAGE_TOO_LARGE', why: 'an announced length of 32 GiB' },
    { message: 'ErrorFrame', encoded: '0a02c328', code: 'MESSAGE_INVALID', why: 'not UTF-8' },
    { message: 'PrefillFrame', encoded: '', code: 'MESSAGE_INVALID', why: 'no kind' },
    { message: 'PrefillFrame', encoded: '1a001a00', code: 'MESSAGE_INVALID', why: 'a kind twice' },
    { message: 'PrefillFrame', encoded: '1a002a030a0141', code: 'MESSAGE_INVALID', why: 'two kinds' },
  ],
});
