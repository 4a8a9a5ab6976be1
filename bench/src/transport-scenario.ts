import { randomBytes } from 'node:crypto';
import { planChunkShards, type Geometry, type SenderOptions, type ShardRange } from '@muser/protocol';
import type { Identity } from '@muser/transport';

/** The 30-B's KV geometry: 52 layers, every fourth global, 2 KV heads of 128, a window of 2,048. */
export const GEOMETRY: Geometry = {
  layers: Array.from({ length: 52 }, (_, layer) => (layer % 4 === 3 ? 'global' : 'window')),
  kvHeads: 2,
  headDimension: 128,
  windowTokens: 2_048,
  ropeBase: 500_000,
  ropeLayers: 'window',
  vocabularySize: 200_000,
};

const CHUNK_TOKENS = 512;

/** What the reader asks for; travels as JSON in place of a PrefillRequest. */
export interface BenchRequest {
  promptTokens: number;
  hash: 'inline' | 'pool';
  /** Hex. */
  nonce: string;
}

/** What the sending process gets from its parent. */
export interface SenderSetup {
  identity: Omit<Identity, 'signingKey'>;
  signingSeed: Uint8Array;
}

/** Every row of every layer is sent once (resume points on): 52 KiB a token. */
export function shardsOf(promptTokens: number): { range: ShardRange; payloadBytes: number }[] {
  const endToken = promptTokens - 1;
  const shards: { range: ShardRange; payloadBytes: number }[] = [];
  for (let chunkStart = 0, chunkIndex = 0; chunkStart < endToken; chunkStart += CHUNK_TOKENS, chunkIndex += 1) {
    const chunkEnd = Math.min(endToken, chunkStart + CHUNK_TOKENS);
    const chunk = { geometry: GEOMETRY, wireType: 'f16', chunkStart, chunkEnd, windowStart: chunkStart } as const;
    for (const { payloadBytes, ...plan } of planChunkShards(chunk)) {
      shards.push({ range: { chunkIndex, chunkStart, chunkEnd, windowStart: chunkStart, ...plan }, payloadBytes });
    }
  }
  return shards;
}

export function payloadBytesOf(promptTokens: number): number {
  return shardsOf(promptTokens).reduce((sum, shard) => sum + shard.payloadBytes, 0);
}

export const FINGERPRINT = Buffer.alloc(32, 1);
export const MODEL_DIGEST = Buffer.alloc(32, 2);

export function senderOptions(
  promptTokens: number,
  transfer: Pick<SenderOptions, 'nonce' | 'requestDigest' | 'producerId' | 'key'>,
): SenderOptions {
  return {
    ...transfer,
    fingerprint: FINGERPRINT,
    producerModel: MODEL_DIGEST,
    geometry: GEOMETRY,
    wireType: 'f16',
    firstToken: 0,
    endToken: promptTokens - 1,
    chunkTokens: CHUNK_TOKENS,
  };
}

/** Payload for every shard: what it says does not matter here, that it is not all zero does. */
export const PAYLOAD = randomBytes(1024 * 1024);
