import { randomBytes } from 'node:crypto';
import { planChunkShards, windowStartOf, type Geometry, type SenderOptions, type ShardRange } from '@muser/protocol';
import type { Identity } from '@muser/transport';

export const CHUNK_TOKENS = 512;

/** What the reader asks for; travels as JSON in place of a PrefillRequest, and opens the raw streams too. */
export interface BenchRequest {
  promptTokens: number;
  /** Whether every chunk brings its window rows; else only those of the last window travel. */
  resumePoints: boolean;
  /** Chunks are ready at this rate, as if an engine computed them; null: all are there at once. */
  tokensPerSecond: number | null;
  hash: 'inline' | 'pool' | 'none';
  /** Hex. */
  nonce: string;
}

/** What the sending process gets from its parent. */
export interface SenderSetup {
  identity: Omit<Identity, 'signingKey'>;
  signingSeed: Uint8Array;
  geometry: Geometry;
  /** To listen on. */
  host: string;
}

export interface SenderPorts {
  verifiedPort: number;
  rawPort: number;
}

/** What the sender answers when it is asked; since it was asked before. */
export interface SenderUsage {
  cpuSeconds: number;
  /** Resident memory at the start of the time, and the most of it. */
  rssBytes: number;
  peakRssBytes: number;
  /** Of the last paced transfer, by the clock that all processes of a machine share. */
  prefillStartedNs: bigint;
  lastChunkNs: bigint;
}

export interface ScenarioChunk {
  end: number;
  shards: { range: ShardRange; payloadBytes: number }[];
}

export function chunksOf(
  geometry: Geometry,
  { promptTokens, resumePoints }: Pick<BenchRequest, 'promptTokens' | 'resumePoints'>,
): ScenarioChunk[] {
  const endToken = promptTokens - 1;
  const chunks: ScenarioChunk[] = [];
  for (let chunkStart = 0; chunkStart < endToken; chunkStart += CHUNK_TOKENS) {
    const chunkEnd = Math.min(endToken, chunkStart + CHUNK_TOKENS);
    // As a producer decides it: a chunk that reaches into the last window always brings its rows.
    const withWindow = resumePoints || chunkEnd > endToken - geometry.windowTokens;
    const windowStart = withWindow ? windowStartOf(geometry, 0, chunkStart, chunkEnd) : chunkEnd;
    const chunk = { geometry, wireType: 'f16', chunkStart, chunkEnd, windowStart } as const;
    const place = { chunkIndex: chunks.length, chunkStart, chunkEnd, windowStart };
    const shards = planChunkShards(chunk).map(({ payloadBytes, ...plan }) => {
      return { range: { ...place, ...plan }, payloadBytes };
    });
    chunks.push({ end: chunkEnd, shards });
  }
  return chunks;
}

export function payloadBytesOf(chunks: readonly ScenarioChunk[]): number {
  return chunks.flatMap(({ shards }) => shards).reduce((sum, { payloadBytes }) => sum + payloadBytes, 0);
}

export const FINGERPRINT = Buffer.alloc(32, 1);
export const MODEL_DIGEST = Buffer.alloc(32, 2);

export function senderOptions(
  geometry: Geometry,
  promptTokens: number,
  transfer: Pick<SenderOptions, 'nonce' | 'requestDigest' | 'producerId' | 'key'>,
): SenderOptions {
  return {
    ...transfer,
    fingerprint: FINGERPRINT,
    producerModel: MODEL_DIGEST,
    geometry,
    wireType: 'f16',
    firstToken: 0,
    endToken: promptTokens - 1,
    chunkTokens: CHUNK_TOKENS,
  };
}

/** Payload for every shard: f16 numbers, none of them infinite, since an engine refuses those. */
export function makePayload(): Buffer {
  const payload = randomBytes(1024 * 1024);
  for (let high = 1; high < payload.length; high += 2) payload[high] = (payload[high] ?? 0) & 0xbf;
  return payload;
}
