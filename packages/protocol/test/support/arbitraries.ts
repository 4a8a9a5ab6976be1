import fc from 'fast-check';
import type { Geometry } from '../../src/geometry.js';
import { nodeIdOf } from '../../src/ids.js';
import type { SCHEMAS } from '../../src/messages.js';
import type { Infer } from '../../src/wire/schema.js';

const bytes = (minLength: number, maxLength = minLength): fc.Arbitrary<Uint8Array> =>
  fc.uint8Array({ minLength, maxLength }).map((value) => Buffer.from(value));
const digest = bytes(32);
const nodeId = digest.map(nodeIdOf);
const tokens = (min = 0): fc.Arbitrary<number> => fc.integer({ min, max: 2 ** 17 });
const safe = fc.maxSafeNat();
const queue = fc.integer({ min: 0, max: 2 ** 20 });
const rate = fc.double({ min: 0, noNaN: true, noDefaultInfinity: true }).map((value) => value + 0);
const label = (maxLength: number): fc.Arbitrary<string> => fc.string({ unit: 'grapheme-ascii', maxLength });
const wireType = fc.constantFrom('f16' as const, 'bf16' as const);
const kind = fc.constantFrom('k' as const, 'v' as const);
const state = fc.constantFrom('starting' as const, 'ready' as const, 'draining' as const, 'error' as const);

export const geometry: fc.Arbitrary<Geometry> = fc
  .record({
    layers: fc.array(fc.constantFrom('global' as const, 'window' as const), { minLength: 1, maxLength: 256 }),
    kvHeads: fc.integer({ min: 1, max: 256 }),
    headDimension: fc.integer({ min: 1, max: 512 }).map((half) => half * 2),
    windowTokens: tokens(1),
    ropeBase: rate,
    ropeLayers: fc.constantFrom('all' as const, 'window' as const),
    vocabularySize: fc.integer({ min: 1, max: 2 ** 24 }),
  })
  .map((value) => ({ ...value, windowTokens: value.layers.includes('window') ? value.windowTokens : 0 }));

const modelIdentity = fc.record({ fingerprint: digest, modelDigest: digest, name: label(128) });
const signedBody = fc.record({ body: bytes(1, 300), signature: bytes(64) });
const part = fc.record({ layer: fc.integer({ min: 0, max: 255 }), kind });
const shard = fc.record({ header: bytes(1, 300), signature: bytes(64), payload: bytes(1, 2000) });
const progress = fc.record({ queuePosition: queue, tokensPrefilled: tokens(), tokensTotal: tokens() });
const errorFrame = fc.record({
  code: fc.string({ unit: 'grapheme-ascii', minLength: 1, maxLength: 64 }),
  message: fc.string({ unit: 'binary', maxLength: 200 }),
  retryable: fc.boolean(),
});
const producerEntry = fc.record({
  nodeId,
  name: label(128),
  addresses: fc.array(fc.string({ unit: 'grapheme-ascii', minLength: 1, maxLength: 256 }), { maxLength: 16 }),
  signingPublicKey: digest,
  producerModel: digest,
  state,
  queueLength: queue,
  prefillTokensPerSecond: rate,
  maxPromptTokens: tokens(),
  ticket: bytes(1, 1024),
  ticketExpiresAtMs: safe,
  backend: label(128),
});
const unavailableProducer = fc.record({
  nodeId,
  name: label(128),
  reason: fc.constantFrom(...(['not_heard', 'unreachable', 'error', 'other_model'] as const)),
});

type Arbitraries = { [K in keyof typeof SCHEMAS]: fc.Arbitrary<Infer<(typeof SCHEMAS)[K]>> };

/** Valid values of every message. */
export const arbitraries: Arbitraries = {
  Geometry: geometry,
  ModelIdentity: modelIdentity,
  SignedBody: signedBody,
  Ticket: fc
    .record({
      ticketId: bytes(16),
      decoderId: nodeId,
      producerId: nodeId,
      fingerprint: digest,
      decoderModel: digest,
      producerModel: digest,
      maxPromptTokens: tokens(2),
      issuedAtMs: fc.integer({ min: 0, max: 2 ** 52 }),
      expiresAtMs: fc.integer({ min: 1, max: 2 ** 40 }),
    })
    .map((value) => ({ ...value, expiresAtMs: value.issuedAtMs + value.expiresAtMs })),
  PrefillRequest: fc.record({
    protocolVersion: fc.constant(1),
    nonce: bytes(16),
    ticket: bytes(1, 1024),
    fingerprint: digest,
    decoderModel: digest,
    tokens: fc.uint32Array({ minLength: 2, maxLength: 200 }).map((value) => Uint32Array.from(value)),
    heldTokens: tokens(),
    heldDigest: bytes(0, 32),
    wireTypes: fc.array(wireType, { minLength: 1, maxLength: 8 }),
    deadlineMs: fc.integer({ min: 1, max: 3_600_000 }),
    chunkTokens: fc.integer({ min: 0, max: 2 ** 14 }),
  }),
  Begin: fc
    .record({
      producerId: nodeId,
      requestDigest: digest,
      fingerprint: digest,
      producerModel: digest,
      geometry,
      wireType,
      firstToken: fc.integer({ min: 0, max: 2 ** 16 }),
      endToken: fc.integer({ min: 1, max: 2 ** 16 }),
      chunkTokens: fc.integer({ min: 1, max: 2 ** 14 }),
      nonce: bytes(16),
    })
    .map((value) => ({ ...value, endToken: value.firstToken + value.endToken })),
  Part: part,
  ShardHeader: fc.record({
    sequence: fc.integer({ min: 0, max: 2 ** 32 - 1 }),
    chunkIndex: tokens(),
    chunkStart: tokens(),
    chunkEnd: tokens(1),
    windowStart: tokens(),
    tokenStart: tokens(),
    tokenCount: fc.integer({ min: 1, max: 2 ** 14 }),
    parts: fc.array(part, { minLength: 1, maxLength: 512 }),
    payloadBytes: fc.integer({ min: 1, max: 2 ** 20 }),
    payloadSha256: digest,
  }),
  Shard: shard,
  Progress: progress,
  Seal: fc
    .record({
      requestDigest: digest,
      shards: fc.integer({ min: 1, max: 2 ** 32 - 1 }),
      payloadBytes: safe,
      chunks: tokens(1),
      endToken: tokens(1),
      headersDigest: digest,
      prefillStartUs: fc.integer({ min: 0, max: 2 ** 50 }),
      prefillEndUs: fc.integer({ min: 0, max: 2 ** 50 }),
      queueUs: safe,
      reusedTokens: tokens(),
    })
    .map((value) => ({ ...value, prefillEndUs: value.prefillStartUs + value.prefillEndUs })),
  ErrorFrame: errorFrame,
  PrefillFrame: fc.oneof(
    fc.record({ kind: fc.constant('begin' as const), value: signedBody }),
    fc.record({ kind: fc.constant('shard' as const), value: shard }),
    fc.record({ kind: fc.constant('progress' as const), value: progress }),
    fc.record({ kind: fc.constant('seal' as const), value: signedBody }),
    fc.record({ kind: fc.constant('error' as const), value: errorFrame }),
  ),
  NodeStatus: fc.record({
    nodeId,
    state,
    model: modelIdentity,
    geometry,
    maxPromptTokens: tokens(),
    queueLength: queue,
    activeTransfers: queue,
    prefillTokensPerSecond: rate,
    backend: label(128),
    version: label(64),
    sentAtMs: safe,
    reason: label(1024),
    unloaded: fc.boolean(),
  }),
  WatchNodeRequest: fc.record({
    protocolVersion: fc.constant(1),
    intervalMs: fc.integer({ min: 100, max: 60_000 }),
  }),
  SetPausedRequest: fc.record({
    protocolVersion: fc.constant(1),
    paused: fc.boolean(),
    cancelRunning: fc.boolean(),
    deadlineMs: fc.integer({ min: 1, max: 3_600_000 }),
  }),
  RevokedNodes: fc.record({
    protocolVersion: fc.constant(1),
    version: safe,
    nodeIds: fc.array(nodeId, { maxLength: 20 }),
  }),
  RevokedNodesTaken: fc.record({ version: safe }),
  CertificateOrder: fc.record({ protocolVersion: fc.constant(1) }),
  CertificateRequest: fc.record({
    protocolVersion: fc.constant(1),
    signingPublicKey: digest,
    csr: bytes(1, 4096),
    proof: bytes(64),
  }),
  IssuedCertificate: fc.record({ protocolVersion: fc.constant(1), certificate: bytes(1, 4096) }),
  CertificateInstalled: fc.record({ serial: fc.string({ unit: 'grapheme-ascii', minLength: 1, maxLength: 64 }) }),
  WatchProducersRequest: fc.record({ protocolVersion: fc.constant(1), model: modelIdentity, name: label(128) }),
  ProducerEntry: producerEntry,
  UnavailableProducer: unavailableProducer,
  ProducerList: fc.record({
    coordinatorTimeMs: safe,
    producers: fc.array(producerEntry, { maxLength: 5 }),
    renewOrder: label(64),
    unavailable: fc.array(unavailableProducer, { maxLength: 5 }),
  }),
};
