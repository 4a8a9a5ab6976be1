import { createHash } from 'node:crypto';
import type { Geometry } from '../../src/geometry.js';
import { fingerprintOf } from '../../src/geometry.js';
import { nodeIdOf } from '../../src/ids.js';
import { signingKeyFromSeed, verifyingKey } from '../../src/keys.js';
import {
  beginSchema,
  frameSchema,
  sealSchema,
  shardHeaderSchema,
  type Begin,
  type Seal,
  type ShardHeader,
} from '../../src/messages.js';
import { planChunkShards, windowStartOf } from '../../src/transfer/plan.js';
import { TransferReceiver, type ReceiverOptions } from '../../src/transfer/receiver.js';
import { TransferSender, type SenderOptions } from '../../src/transfer/sender.js';

export const sha256 = (...parts: Uint8Array[]): Buffer => {
  const hash = createHash('sha256');
  for (const part of parts) hash.update(part);
  return hash.digest();
};
const filled = (length: number, value: number): Buffer => Buffer.alloc(length, value);

export const producerKey = signingKeyFromSeed(filled(32, 1));
export const strangerKey = signingKeyFromSeed(filled(32, 2));
export const coordinatorKey = signingKeyFromSeed(filled(32, 3));
export const decoderKey = signingKeyFromSeed(filled(32, 4));
export const producerId = nodeIdOf(producerKey.publicKey);

export const geometry: Geometry = {
  layers: ['window', 'window', 'window', 'global'],
  kvHeads: 2,
  headDimension: 8,
  windowTokens: 8,
  ropeBase: 500_000,
  ropeLayers: 'window',
  vocabularySize: 1000,
};
export const fingerprint = fingerprintOf({ geometry, tokenizerSha256: filled(32, 9) });

export interface TransferCase {
  geometry: Geometry;
  firstToken: number;
  endToken: number;
  /** Tokens of each chunk. */
  chunks: number[];
  /** Chunks whose window rows are skipped. */
  skipped: ReadonlySet<number>;
  maxPayloadBytes: number;
}

/** Two skipped windows, chunks shorter and longer than the window, several shards a chunk. */
export const standardCase: TransferCase = {
  geometry,
  firstToken: 3,
  endToken: 60,
  chunks: [5, 12, 8, 4, 20, 8],
  skipped: new Set([1, 2]),
  maxPayloadBytes: 512,
};

export const nonce = filled(16, 5);
export const requestDigest = filled(32, 6);

export function senderOptions(of: TransferCase = standardCase): SenderOptions {
  return {
    nonce,
    requestDigest,
    producerId,
    key: producerKey,
    fingerprint,
    producerModel: filled(32, 7),
    geometry: of.geometry,
    wireType: 'f16',
    firstToken: of.firstToken,
    endToken: of.endToken,
    chunkTokens: Math.max(...of.chunks),
  };
}

export function receiverOptions(of: TransferCase = standardCase): ReceiverOptions {
  return {
    nonce,
    requestDigest,
    expect: {
      producerId,
      producerKey: verifyingKey(producerKey.publicKey),
      fingerprint,
      geometry: of.geometry,
      wireTypes: ['f16'],
      firstToken: of.firstToken,
      endToken: of.endToken,
    },
  };
}

export const newReceiver = (of: TransferCase = standardCase): TransferReceiver =>
  new TransferReceiver(receiverOptions(of));

/** Header and payload of every shard, in order. Payload bytes depend on the sequence alone. */
export function shardsOf(of: TransferCase = standardCase): { header: ShardHeader; payload: Buffer }[] {
  const shards: { header: ShardHeader; payload: Buffer }[] = [];
  let chunkStart = of.firstToken;
  of.chunks.forEach((tokens, chunkIndex) => {
    const chunkEnd = chunkStart + tokens;
    const windowStart = of.skipped.has(chunkIndex)
      ? chunkEnd
      : windowStartOf(of.geometry, of.firstToken, chunkStart, chunkEnd);
    const range = { chunkStart, chunkEnd, windowStart };
    for (const plan of planChunkShards({ geometry: of.geometry, wireType: 'f16', ...range }, of.maxPayloadBytes)) {
      const payload = Buffer.alloc(plan.payloadBytes);
      for (let i = 0; i < payload.length; i++) payload[i] = (i * 7 + shards.length) & 0xff;
      const header = { sequence: shards.length, chunkIndex, ...range, ...plan, payloadSha256: sha256(payload) };
      shards.push({ header, payload });
    }
    chunkStart = chunkEnd;
  });
  return shards;
}

export const sealTimes = { prefillStartUs: 10, prefillEndUs: 5000, queueUs: 3, reusedTokens: 0 };

/** Every message of a complete transfer as the sender makes them. */
export function messagesOf(of: TransferCase = standardCase): Buffer[] {
  const sender = new TransferSender(senderOptions(of));
  const messages = [sender.begin(), sender.progress({ queuePosition: 0, tokensPrefilled: 1, tokensTotal: 61 })];
  for (const { header, payload } of shardsOf(of)) messages.push(sender.shard(header, payload, header.payloadSha256));
  messages.push(sender.seal(sealTimes));
  return messages;
}

const signedFrame = (kind: 'begin' | 'seal', body: Buffer, key = producerKey, signedNonce = nonce): Buffer =>
  frameSchema.encode({ kind, value: { body, signature: key.sign(`muser/1/${kind}`, signedNonce, body) } });

/** What a right Begin says. */
export function beginOf(of: TransferCase = standardCase): Begin {
  const { key: _, ...begin } = senderOptions(of);
  return { ...begin, nonce };
}

export function beginMessage(changes: Partial<Begin> = {}, key = producerKey, signedNonce = nonce): Buffer {
  return signedFrame('begin', beginSchema.encode({ ...beginOf(), ...changes }), key, signedNonce);
}

export function shardMessage(header: ShardHeader, payload: Buffer, key = producerKey, signedNonce = nonce): Buffer {
  const encoded = shardHeaderSchema.encode(header);
  const signature = key.sign('muser/1/shard', signedNonce, encoded);
  return frameSchema.encode({ kind: 'shard', value: { header: encoded, signature, payload } });
}

/** A correctly signed Seal for these shards, with changes. */
export function sealMessage(
  shards: readonly { header: ShardHeader }[],
  changes: Partial<Seal> = {},
  key = producerKey,
): Buffer {
  const headers = shards.map(({ header }) => shardHeaderSchema.encode(header));
  const prefixed = headers.flatMap((header) => {
    const length = Buffer.alloc(4);
    length.writeUInt32LE(header.length);
    return [length, header];
  });
  const last = shards.at(-1)?.header;
  const seal: Seal = {
    requestDigest,
    shards: shards.length,
    payloadBytes: shards.reduce((total, { header }) => total + header.payloadBytes, 0),
    chunks: (last?.chunkIndex ?? 0) + 1,
    endToken: last?.chunkEnd ?? 1,
    headersDigest: sha256(...prefixed),
    ...sealTimes,
    ...changes,
  };
  return signedFrame('seal', sealSchema.encode(seal), key);
}
