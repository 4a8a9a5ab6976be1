import { createHash } from 'node:crypto';
import { Engine, type Model } from '@muser/metal';
import {
  decodePrefillRequest,
  fingerprintOf,
  planChunkShards,
  requestDigestOf,
  TransferSender,
  windowStartOf,
  type Geometry,
  type PrefillRequest,
  type SenderOptions,
} from '@muser/protocol';
import { addHandoffService, createServer, PeerListener, type Identity, type PrefillCall } from '@muser/transport';

/** What a test may do to a transfer. Every hook has the real behaviour as its default. */
export interface Misbehaviour {
  /** Before anything is sent; may send, throw, or never return (until the call's signal). */
  readonly beforeBegin?: (call: PrefillCall, request: PrefillRequest) => Promise<void>;
  /** Other claims than the true ones. */
  readonly sender?: (options: SenderOptions) => SenderOptions;
  /** Before a chunk is computed; `index` counts the chunks of this call. */
  readonly beforeChunk?: (index: number, call: PrefillCall) => Promise<void>;
  /** Length of its chunks, whatever was wanted, for a transfer that ends at that token. */
  readonly chunkTokens?: (endToken: number) => number;
  /** Computes the rows of other tokens, as many. */
  readonly tokens?: (tokens: Uint32Array) => Uint32Array;
  /** Other rows than the true ones; the digest is made afterwards. */
  readonly payload?: (payload: Buffer, shard: number) => Buffer;
  /** Chunks whose window rows are left out, as a producer does when its reader is behind. */
  readonly skipWindowOf?: readonly number[];
  /** Other bytes than those that were signed; null leaves the frame out. */
  readonly frame?: (frame: Buffer, kind: 'begin' | 'shard' | 'seal', shard: number) => Buffer | null;
  /** After a frame was sent. */
  readonly after?: (
    kind: 'begin' | 'shard' | 'seal',
    shard: number,
    call: PrefillCall,
    sender: TransferSender,
  ) => Promise<void>;
}

/** Ends the stream as if all was well. */
export class EndStream extends Error {}

export interface StandInProducer {
  readonly nodeId: string;
  readonly listener: PeerListener;
  readonly target: string;
  readonly engine: Engine;
  /** Calls that are running now. */
  readonly running: () => number;
  readonly calls: () => number;
  /** What each call asked for, in order: tokens held by the decoder, and of the prompt. */
  readonly requests: { heldTokens: number; promptTokens: number }[];
  misbehave(how: Misbehaviour): void;
  close(): Promise<void>;
}

/** A producer on a real engine over the real transport, which can be told to break any rule. */
export async function startStandInProducer(options: {
  identity: Identity;
  model: Model;
  modelDigest: Uint8Array;
  contextTokens: number;
  chunkTokens: number;
}): Promise<StandInProducer> {
  const { identity, model, contextTokens, chunkTokens } = options;
  const engine = await Engine.create(model, {
    maxSequences: 4,
    contextTokens,
    chunkTokens,
    flashAttention: true,
    kvType: 'f16',
    threads: 1,
  });
  const geometry: Geometry = { ...model.info.geometry, vocabularySize: model.info.vocabularySize };
  const fingerprint = fingerprintOf({ geometry, tokenizerSha256: model.info.tokenizerSha256 });
  let how: Misbehaviour = {};
  let running = 0;
  let calls = 0;
  const requests: StandInProducer['requests'] = [];

  const prefill = async (call: PrefillCall): Promise<void> => {
    const behaviour = how;
    running += 1;
    calls += 1;
    try {
      const request = decodePrefillRequest(call.requestBytes);
      requests.push({ heldTokens: request.heldTokens, promptTokens: request.tokens.length });
      await behaviour.beforeBegin?.(call, request);
      const endToken = request.tokens.length - 1;
      const size = behaviour.chunkTokens?.(endToken) ?? chunkTokens;
      const honest: SenderOptions = {
        nonce: request.nonce,
        requestDigest: requestDigestOf(call.requestBytes),
        producerId: identity.nodeId,
        key: identity.signingKey,
        fingerprint,
        producerModel: options.modelDigest,
        geometry,
        wireType: 'f16',
        firstToken: request.heldTokens,
        endToken,
        chunkTokens: size,
      };
      const sender = new TransferSender(behaviour.sender?.(honest) ?? honest);
      await transfer({ call, request, sender, engine, geometry, chunkTokens: size, behaviour });
    } catch (error) {
      if (!(error instanceof EndStream)) throw error;
    } finally {
      running -= 1;
    }
  };

  const server = createServer();
  addHandoffService(server, { authorize: () => undefined, prefill });
  const listener = await PeerListener.listen({ identity, host: '127.0.0.1', port: 0, server });
  return {
    nodeId: identity.nodeId,
    listener,
    target: `127.0.0.1:${listener.address.port}`,
    engine,
    running: () => running,
    calls: () => calls,
    requests,
    misbehave: (next) => {
      how = next;
    },
    close: async () => {
      await listener.close(0);
      await engine.close();
    },
  };
}

async function transfer(o: {
  call: PrefillCall;
  request: PrefillRequest;
  sender: TransferSender;
  engine: Engine;
  geometry: Geometry;
  chunkTokens: number;
  behaviour: Misbehaviour;
}): Promise<void> {
  const { call, request, sender, engine, geometry, chunkTokens, behaviour } = o;
  let shard = 0;
  const send = async (frame: Buffer, kind: 'begin' | 'shard' | 'seal'): Promise<void> => {
    const sent = behaviour.frame === undefined ? frame : behaviour.frame(frame, kind, shard);
    if (sent !== null) await call.send(sent);
    await behaviour.after?.(kind, shard, call, sender);
  };
  const tokens = behaviour.tokens?.(request.tokens) ?? request.tokens;
  const endToken = tokens.length - 1;
  const sequence = engine.open(request.tokens.length);
  try {
    const startedAt = performance.now();
    const sinceStartUs = (): number => Math.round((performance.now() - startedAt) * 1_000);
    await send(sender.begin(), 'begin');
    let prefillEndUs = 0;
    const firstToken = request.heldTokens;
    // Rows that the decoder holds are computed again, in whole chunks, and not sent.
    for (let from = 0; from < firstToken; from += chunkTokens) {
      const chunk = tokens.subarray(from, Math.min(firstToken, from + chunkTokens));
      await sequence.evaluate(chunk, { signal: call.signal });
    }
    for (let start = firstToken, index = 0; start < endToken; start += chunkTokens, index += 1) {
      const end = Math.min(endToken, start + chunkTokens);
      await behaviour.beforeChunk?.(index, call);
      await sequence.evaluate(tokens.subarray(start, end), { signal: call.signal });
      prefillEndUs = sinceStartUs();
      const skipped = behaviour.skipWindowOf?.includes(index) ?? false;
      const windowStart = skipped ? end : windowStartOf(geometry, firstToken, start, end);
      const exported = await sequence.exportRange(start, end, { windowStart });
      for (const plan of planChunkShards({
        geometry,
        wireType: 'f16',
        chunkStart: start,
        chunkEnd: end,
        windowStart,
      })) {
        const rows = Buffer.alloc(plan.payloadBytes);
        let offset = 0;
        for (const { layer, kind } of plan.parts) {
          offset += exported.read(layer, kind, plan.tokenStart, plan.tokenCount, rows, offset);
        }
        const payload = behaviour.payload?.(rows, shard) ?? rows;
        const frame = sender.shard(
          {
            chunkIndex: index,
            chunkStart: start,
            chunkEnd: end,
            windowStart,
            tokenStart: plan.tokenStart,
            tokenCount: plan.tokenCount,
            parts: plan.parts,
          },
          payload,
          createHash('sha256').update(payload).digest(),
        );
        await send(frame, 'shard');
        shard += 1;
      }
      exported.dispose();
    }
    await send(sender.seal({ prefillStartUs: 0, prefillEndUs, queueUs: 0, reusedTokens: 0 }), 'seal');
  } finally {
    await sequence.dispose();
  }
}
