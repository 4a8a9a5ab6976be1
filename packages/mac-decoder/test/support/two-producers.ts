import { MuserError, type ErrorCode, type ProducerEntry } from '@muser/protocol';
import { expect } from 'vitest';
import type { DecoderConfig } from '../../src/config.js';
import type { MuserReport } from '../../src/requests/completion.js';
import { CHUNK_TOKENS, Rig } from './rig.js';
import { EndStream, startStandInProducer, type Misbehaviour, type StandInProducer } from './stand-in-producer.js';

/**
 * Eight layers, K and V, two heads of 64, two bytes: each of muse-nano's rows is sent once, as a chunk is no longer than its
 * window.
 */
const BYTES_A_TOKEN = 8 * 2 * 2 * 64 * 2;
export const SHARDS_PER_CHUNK = 2;
const CONTEXT_TOKENS = 8_192;

/** A rig with another producer, which is taken only when the first one cannot be: it says that it has a queue. */
export class TwoProducers {
  private constructor(
    readonly rig: Rig,
    readonly second: StandInProducer,
    private readonly secondEntry: ProducerEntry,
  ) {}

  static async start(overrides: Partial<DecoderConfig> = {}): Promise<TwoProducers> {
    const rig = await Rig.start(overrides);
    const { model, modelDigest, authority } = rig;
    const identity = await authority.identity('producer');
    const engine = { contextTokens: CONTEXT_TOKENS, chunkTokens: CHUNK_TOKENS };
    const second = await startStandInProducer({ identity, model, modelDigest, ...engine });
    const entry = rig.entry({
      nodeId: identity.nodeId,
      signingPublicKey: identity.signingKey.publicKey,
      addresses: [second.target],
      name: 'second',
      queueLength: 5,
    });
    return new TwoProducers(rig, second, entry);
  }

  /** Both are offered with a clean record, and behave like this. */
  async offer(first: Misbehaviour, other: Misbehaviour = {}): Promise<void> {
    const { rig } = this;
    rig.producer.misbehave(first);
    this.second.misbehave(other);
    for (const state of ['error', 'ready'] as const) {
      rig.coordinator.publish([rig.entry({ state }), { ...this.secondEntry, state }]);
      await rig.until(async () => {
        const { producers } = await rig.health();
        return producers.length === 2 && producers.every((producer) => producer.state === state);
      });
    }
  }

  /** Waits until nothing of any request is left anywhere. */
  async settled(): Promise<void> {
    await this.rig.settled();
    await this.rig.until(async () => this.second.running() === 0 && this.second.engine.stats().sequences === 0);
  }

  /** Breaks the decoder's connections to both. */
  disconnect(): void {
    for (const { listener } of [this.rig.producer, this.second]) {
      listener.disconnectPeer(this.rig.identities.decoder.nodeId);
    }
  }

  async close(): Promise<void> {
    // The model that both use is closed with the rig.
    await this.second.close();
    await this.rig.close();
  }
}

/** Each attempt begins where the one before ended, and brings the rows from there on and no others. */
export function expectNothingTwice({ attempts, promptTokens, kvBytes }: MuserReport): void {
  attempts.forEach(({ from, to, bytes, code }, index) => {
    expect(from).toBe(attempts[index - 1]?.to ?? 0);
    expect(bytes).toBeGreaterThanOrEqual((to - from) * BYTES_A_TOKEN);
    if (code === null) expect([to, bytes]).toEqual([promptTokens - 1, (promptTokens - 1 - from) * BYTES_A_TOKEN]);
  });
  expect(kvBytes).toBe(attempts.reduce((sum, { bytes }) => sum + bytes, 0));
}

/** Waits until the call is cancelled. */
export const hang = (signal: AbortSignal): Promise<void> =>
  new Promise((_resolve, reject) =>
    signal.addEventListener('abort', () => reject(signal.reason as Error), { once: true }),
  );

/** A frame of a transfer: Begin, or the shard with that number. */
export type Point = 'begin' | number;

/** Something happens when that frame has left. */
export const at = (point: Point, what: NonNullable<Misbehaviour['after']>): Misbehaviour => ({
  after: async (kind, shard, call, sender) => {
    if (point === 'begin' ? kind === 'begin' : kind === 'shard' && shard === point) {
      await what(kind, shard, call, sender);
    }
  },
});

export const endsAt = (point: Point): Misbehaviour => at(point, () => Promise.reject(new EndStream()));

/** When a producer fails, and where the next one goes on. */
export const PHASES: readonly (readonly [when: string, point: Point, resumedAt: number])[] = [
  ['after Begin', 'begin', 0],
  ['in its first chunk', 0, 0],
  ['between its second and its third chunk', 2 * SHARDS_PER_CHUNK - 1, 2 * CHUNK_TOKENS],
  ['in its third chunk', 2 * SHARDS_PER_CHUNK, 2 * CHUNK_TOKENS],
];

/** How a producer fails by its own fault. */
export const FAULTS: readonly (readonly [how: string, code: ErrorCode, at: (point: Point) => Misbehaviour])[] = [
  ['ends its stream', 'TRANSFER_TRUNCATED', endsAt],
  [
    'fails',
    'ENGINE_FAILED',
    (point) =>
      at(point, async (_kind, _shard, call, sender) => {
        await call.send(sender.error(new MuserError('ENGINE_FAILED', 'out of luck')));
        throw new EndStream();
      }),
  ],
  ['goes silent', 'STALLED', (point) => at(point, (_kind, _shard, call) => hang(call.signal))],
  [
    'sends a changed shard',
    'DIGEST_MISMATCH',
    (point) => ({
      frame: (frame, kind, shard) => {
        if (kind !== 'shard' || shard !== (point === 'begin' ? 0 : point + 1)) return frame;
        const changed = Buffer.from(frame);
        changed[changed.length - 1] = (changed[changed.length - 1] ?? 0) ^ 1;
        return changed;
      },
    }),
  ],
];

/** What a client sees, and the two producers, when the first one fails and the second one goes on. */
export function expectSecondWentOn(two: TwoProducers, muser: MuserReport, code: ErrorCode, resumedAt: number): void {
  expect(muser).toMatchObject({ prefill: 'remote', fallback: null, producer: { name: 'second' } });
  expect(muser.attempts).toMatchObject([
    { producer: { name: 'stand-in' }, from: 0, to: resumedAt, code },
    { producer: { name: 'second' }, from: resumedAt, to: muser.promptTokens - 1, code: null },
  ]);
  expectNothingTwice(muser);
  expect(two.second.requests.at(-1)).toEqual({ heldTokens: resumedAt, promptTokens: muser.promptTokens });
}
