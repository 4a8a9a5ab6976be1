import { createHash } from 'node:crypto';
import { Engine, EngineError, loadModel, type KvStage, type Model, type Sequence } from '@muser/metal';
import {
  decodePrefillRequest,
  fingerprintOf,
  generateSigningKey,
  nodeIdOf,
  planChunkShards,
  requestDigestOf,
  signingKeyFromSeed,
  TransferSender,
  windowStartOf,
  type Geometry,
  type ProducerEntry,
  type SigningKey,
} from '@muser/protocol';
import { ByteBudget } from '@muser/transport';
import { SequenceLease } from '../../src/engine/sequence-lease.js';
import { RowOrigins } from '../../src/engine/row-origins.js';
import type { TransferFigures } from '../../src/ingest/figures.js';
import type { FrameSource, TransferOptions, TransferResult } from '../../src/ingest/transfer.js';
import { transferPrefill } from '../../src/ingest/transfer.js';
import { producerEntry } from './entries.js';
import { MODEL_PATH } from './rig.js';

/** Small, so that a chunk has several shards. */
const SHARD_BYTES = 32 * 1024;
/** An f16 that is a plain number. */
const PLAIN_BYTE = 0x2c;
/** f16 infinity, little-endian. */
const INFINITY_BYTES = [0x00, 0x7c];

/** What a transfer is made of: prompt, chunks, and which of them leave their window rows out. */
export interface TransferShape {
  readonly tokens: number;
  readonly chunkTokens: number;
  readonly skipped?: ReadonlySet<number>;
  /** The shard that has an infinite number in it. */
  readonly infiniteShard?: number;
}

/** What a right producer sends for a request, and what a decoder may do with it. */
export interface RightTransfer {
  readonly begin: Buffer;
  readonly progress: Buffer;
  readonly shards: readonly Buffer[];
  readonly seal: Buffer;
  /** For each chunk: its end, the number of its last shard, and whether a decoder can go on from there. */
  readonly chunks: readonly { end: number; lastShard: number; resumePoint: boolean }[];
}

/** A lease on a real sequence of which one install fails, and which counts what becomes of the stages. */
export class WatchedLease extends SequenceLease {
  readonly installedEnds: number[] = [];
  stages = { made: 0, disposed: 0 };
  /** Which install fails, counted from 0; it waits for `failWhen` first. */
  failInstall: number | null = null;
  failWhen: Promise<void> = Promise.resolve();
  private installs = 0;

  override get sequence(): Sequence {
    const real = super.sequence;
    return new Proxy(real, {
      get: (target, key) => {
        if (key === 'stage') return (...range: Parameters<Sequence['stage']>) => this.watch(target.stage(...range));
        if (key === 'install') return (stage: KvStage) => this.install(target, stage);
        const value: unknown = Reflect.get(target, key, target);
        return typeof value === 'function' ? (value.bind(target) as unknown) : value;
      },
    });
  }

  private watch(stage: KvStage): KvStage {
    this.stages.made += 1;
    let disposed = false;
    const dispose = stage.dispose.bind(stage);
    stage.dispose = () => {
      if (!disposed) this.stages.disposed += 1;
      disposed = true;
      dispose();
    };
    return stage;
  }

  private async install(sequence: Sequence, stage: KvStage): Promise<void> {
    if (this.installs++ === this.failInstall) {
      await this.failWhen;
      throw new EngineError('OUT_OF_MEMORY', 'no room for the test');
    }
    await sequence.install(stage);
    this.installedEnds.push(sequence.position);
  }
}

/** One engine and one producer's key, for any number of transfers one after another. */
export class IngestBench {
  /** What one producer's transfers may stage; so little that chunks wait for one another. */
  readonly staged = new ByteBudget(1);

  private constructor(
    readonly model: Model,
    readonly engine: Engine,
    readonly geometry: Geometry,
    private readonly key: SigningKey,
  ) {}

  static async open(): Promise<IngestBench> {
    const model = await loadModel(MODEL_PATH);
    const { geometry, vocabularySize } = model.info;
    const options = { maxSequences: 1, contextTokens: 2_048, chunkTokens: 512, flashAttention: true } as const;
    const engine = await Engine.create(model, { ...options, kvType: 'f16', threads: 1 });
    const key = signingKeyFromSeed(generateSigningKey().seed);
    return new IngestBench(model, engine, { ...geometry, vocabularySize }, key);
  }

  async close(): Promise<void> {
    await this.engine.close();
    this.model.close();
  }

  lease(shape: TransferShape): WatchedLease {
    const open = () => this.engine.open(shape.tokens + 1);
    return new WatchedLease({
      sequence: open(),
      origins: new RowOrigins(),
      reopen: async () => open(),
      giveBack: (sequence) => sequence.dispose(),
    });
  }

  /** Runs a transfer of that shape whose frames come from `frames`. */
  run(
    lease: WatchedLease,
    shape: TransferShape,
    frames: FrameSource,
    options: Pick<TransferOptions, 'signal' | 'deadlineMs' | 'observer'>,
  ): Promise<TransferResult> {
    const now = (): number => performance.now();
    const { producer, staged } = this;
    return transferPrefill({ ...this.wanted(shape), lease, producer, staged, now, frames, ...options });
  }

  /** The producer that the answers are of, as a coordinator lists it. */
  get producer(): ProducerEntry {
    return producerEntry({ nodeId: nodeIdOf(this.key.publicKey), signingPublicKey: this.key.publicKey });
  }

  /** What is asked for with a transfer of that shape. */
  wanted(shape: TransferShape) {
    const { tokenizerSha256 } = this.model.info;
    return {
      model: {
        fingerprint: fingerprintOf({ geometry: this.geometry, tokenizerSha256 }),
        modelDigest: new Uint8Array(32),
        name: 'test',
      },
      geometry: this.geometry,
      tokens: Uint32Array.from({ length: shape.tokens }, (_, index) => 300 + index),
      chunkTokens: shape.chunkTokens,
      stallTimeoutMs: 60_000,
    };
  }

  /** Everything that the right answer to this request consists of. */
  answer(requestBytes: Buffer, shape: TransferShape, key: SigningKey = this.key): RightTransfer {
    const { geometry } = this;
    const request = decodePrefillRequest(requestBytes);
    const endToken = shape.tokens - 1;
    const sender = new TransferSender({
      nonce: request.nonce,
      requestDigest: requestDigestOf(requestBytes),
      producerId: nodeIdOf(this.key.publicKey),
      key,
      fingerprint: request.fingerprint,
      producerModel: new Uint8Array(32),
      geometry,
      wireType: 'f16',
      firstToken: 0,
      endToken,
      chunkTokens: shape.chunkTokens,
    });
    const begin = sender.begin();
    const progress = sender.progress({ queuePosition: 0, tokensPrefilled: 1, tokensTotal: endToken });
    const shards: Buffer[] = [];
    const chunks: RightTransfer['chunks'][number][] = [];
    let windowRowsSince = 0;
    for (let start = 0; start < endToken; start += shape.chunkTokens) {
      const end = Math.min(endToken, start + shape.chunkTokens);
      const skipped = shape.skipped?.has(chunks.length) ?? false;
      const windowStart = skipped ? end : windowStartOf(geometry, 0, start, end);
      const range = { chunkIndex: chunks.length, chunkStart: start, chunkEnd: end, windowStart };
      for (const plan of planChunkShards({ geometry, wireType: 'f16', ...range }, SHARD_BYTES)) {
        const payload = Buffer.alloc(plan.payloadBytes, PLAIN_BYTE);
        if (shards.length === shape.infiniteShard) payload.set(INFINITY_BYTES, 0);
        shards.push(sender.shard({ ...range, ...plan }, payload, createHash('sha256').update(payload).digest()));
      }
      if (skipped) windowRowsSince = end;
      const resumePoint = windowRowsSince <= Math.max(0, end - geometry.windowTokens);
      chunks.push({ end, lastShard: shards.length - 1, resumePoint });
    }
    const seal = sender.seal({ prefillStartUs: 0, prefillEndUs: 1, queueUs: 0, reusedTokens: 0 });
    return { begin, progress, shards, seal, chunks };
  }
}

/** An observer that keeps what it is told, and promises of the states. */
export function watchTransfer(): {
  observer: TransferOptions['observer'];
  told: string[];
  reached: { receiving: Promise<void>; sealed: Promise<void> };
} {
  const told: string[] = [];
  let receiving = (): void => undefined;
  let sealed = (): void => undefined;
  const reached = {
    receiving: new Promise<void>((resolve) => (receiving = resolve)),
    sealed: new Promise<void>((resolve) => (sealed = resolve)),
  };
  const observer: TransferOptions['observer'] = {
    accepted: () => {
      told.push('accepted');
      receiving();
    },
    progress: () => void told.push('progress'),
    received: (_at: number, figures: TransferFigures) => void told.push(`received ${figures.shards}`),
    sealed: () => {
      told.push('sealed');
      sealed();
    },
    installed: (_at, position) => void told.push(`installed ${position}`),
  };
  return { observer, told, reached };
}

/** What an aborted call of the transport does. */
export function untilAborted(signal: AbortSignal): Promise<never> {
  return new Promise((_, reject) => {
    const fail = (): void => reject(signal.reason as Error);
    if (signal.aborted) fail();
    else signal.addEventListener('abort', fail, { once: true });
  });
}
