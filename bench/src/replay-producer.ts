import { createHash } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';

import { Engine, type Model } from '@muser/metal';
import {
  decodePrefillRequest,
  fingerprintOf,
  planChunkShards,
  requestDigestOf,
  TransferSender,
  windowStartOf,
  type Geometry,
  type ShardPlan,
} from '@muser/protocol';
import { addHandoffService, createServer, PeerListener, type Identity, type PrefillCall } from '@muser/transport';

/** When the chunk with that number is ready, in milliseconds since Begin; Infinity: never. */
export type Schedule = (chunk: number) => number;

interface StoredChunk {
  readonly start: number;
  readonly end: number;
  readonly shards: readonly { plan: ShardPlan; payload: Buffer; digest: Buffer }[];
}

/**
 * The KV rows of one prompt, computed beforehand: what a producer sends at a given pace without computing, so that on a shared
 * machine it does not slow the decoder that it is compared with.
 */
export class StoredPrompt {
  private chunks: readonly StoredChunk[] = [];

  constructor(
    private readonly model: Model,
    private readonly modelDigest: Uint8Array,
    readonly chunkTokens: number,
  ) {}

  get chunkCount(): number {
    return this.chunks.length;
  }

  private get geometry(): Geometry {
    return { ...this.model.info.geometry, vocabularySize: this.model.info.vocabularySize };
  }

  /** Answers one call: computes and keeps the rows at the first one, sends what is kept by the schedule at later ones. */
  async answer(call: PrefillCall, identity: Identity, schedule: Schedule): Promise<void> {
    const request = decodePrefillRequest(call.requestBytes);
    if (this.chunks.length === 0) this.chunks = await this.compute(request.tokens);
    const { geometry, model, chunkTokens } = this;
    const sender = new TransferSender({
      nonce: request.nonce,
      requestDigest: requestDigestOf(call.requestBytes),
      producerId: identity.nodeId,
      key: identity.signingKey,
      fingerprint: fingerprintOf({ geometry, tokenizerSha256: model.info.tokenizerSha256 }),
      producerModel: this.modelDigest,
      geometry,
      wireType: 'f16',
      firstToken: request.heldTokens,
      endToken: request.tokens.length - 1,
      chunkTokens,
    });
    await call.send(sender.begin());
    const startedAt = performance.now();
    for (const [chunkIndex, { start, end, shards }] of this.chunks.entries()) {
      await until(startedAt + schedule(chunkIndex), call.signal);
      const windowStart = windowStartOf(geometry, 0, start, end);
      for (const { plan, payload, digest } of shards) {
        const header = { chunkIndex, chunkStart: start, chunkEnd: end, windowStart, ...plan };
        await call.send(sender.shard(header, payload, digest));
      }
    }
    const prefillEndUs = Math.round((performance.now() - startedAt) * 1_000);
    await call.send(sender.seal({ prefillStartUs: 0, prefillEndUs, queueUs: 0, reusedTokens: 0 }));
  }

  private async compute(tokens: Uint32Array): Promise<StoredChunk[]> {
    const { geometry, model, chunkTokens } = this;
    const contextTokens = tokens.length + chunkTokens;
    const options = { maxSequences: 1, contextTokens, chunkTokens, flashAttention: true, threads: 1 } as const;
    const engine = await Engine.create(model, { ...options, kvType: 'f16' });
    const sequence = engine.open(tokens.length);
    const chunks: StoredChunk[] = [];
    for (let start = 0; start < tokens.length - 1; start += chunkTokens) {
      const end = Math.min(tokens.length - 1, start + chunkTokens);
      await sequence.evaluate(tokens.subarray(start, end));
      const windowStart = windowStartOf(geometry, 0, start, end);
      const rows = await sequence.exportRange(start, end, { windowStart });
      const plans = planChunkShards({ geometry, wireType: 'f16', chunkStart: start, chunkEnd: end, windowStart });
      const shards = plans.map((plan) => {
        const payload = Buffer.alloc(plan.payloadBytes);
        let offset = 0;
        for (const { layer, kind } of plan.parts) {
          offset += rows.read(layer, kind, plan.tokenStart, plan.tokenCount, payload, offset);
        }
        return { plan, payload, digest: createHash('sha256').update(payload).digest() };
      });
      rows.dispose();
      chunks.push({ start, end, shards });
    }
    await sequence.dispose();
    await engine.close();
    return chunks;
  }
}

/** Listens as a producer that answers every call from `prompt`. */
export async function listenAsProducer(
  identity: Identity,
  prompt: StoredPrompt,
  schedule: Schedule,
): Promise<{ target: string; close: () => Promise<void> }> {
  const server = createServer();
  addHandoffService(server, {
    authorize: () => undefined,
    prefill: (call) => prompt.answer(call, identity, schedule),
  });
  const listener = await PeerListener.listen({ identity, host: '127.0.0.1', port: 0, server });
  return { target: `127.0.0.1:${listener.address.port}`, close: () => listener.close(0) };
}

/** Throws when the call is cancelled meanwhile. */
async function until(at: number, signal: AbortSignal): Promise<void> {
  if (at === Infinity) {
    return new Promise((_resolve, reject) =>
      signal.addEventListener('abort', () => reject(signal.reason as Error), { once: true }),
    );
  }
  const left = at - performance.now();
  if (left > 0) await delay(left, undefined, { signal });
  signal.throwIfAborted();
}
