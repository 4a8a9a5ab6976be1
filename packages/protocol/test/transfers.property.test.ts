import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { isErrorCode, MuserError } from '../src/errors.js';
import type { Geometry } from '../src/geometry.js';
import { fingerprintOf } from '../src/geometry.js';
import { encodeErrorFrame } from '../src/transfer/sender.js';
import { TransferReceiver } from '../src/transfer/receiver.js';
import {
  beginMessage,
  messagesOf,
  newReceiver,
  receiverOptions,
  sealMessage,
  shardMessage,
  shardsOf,
  strangerKey,
  type TransferCase,
} from './support/transfers.js';

const geometries = fc
  .record({
    layers: fc.array(fc.constantFrom('global' as const, 'window' as const), { minLength: 1, maxLength: 6 }),
    windowTokens: fc.integer({ min: 1, max: 12 }),
    kvHeads: fc.integer({ min: 1, max: 3 }),
    headDimension: fc.constantFrom(2, 8),
  })
  .map((value): Geometry => ({
    ...value,
    windowTokens: value.layers.includes('window') ? value.windowTokens : 0,
    ropeBase: 10_000,
    ropeLayers: 'all',
    vocabularySize: 10,
  }));

/** Random transfers; windows are skipped at random wherever that is allowed (a chunk of no rows at all is not). */
const cases = fc
  .record({
    geometry: geometries,
    firstToken: fc.nat(20),
    chunks: fc.array(fc.integer({ min: 1, max: 20 }), { minLength: 1, maxLength: 8 }),
    skip: fc.array(fc.boolean(), { minLength: 8, maxLength: 8 }),
    maxPayloadBytes: fc.integer({ min: 64, max: 600 }),
  })
  .map(({ skip, ...rest }): TransferCase => {
    const ends: number[] = [];
    for (const tokens of rest.chunks) ends.push((ends.at(-1) ?? rest.firstToken) + tokens);
    const endToken = ends.at(-1) ?? 0;
    const maySkip = (end: number, index: number): boolean =>
      skip[index] === true && rest.geometry.layers.includes('global') && end <= endToken - rest.geometry.windowTokens;
    return { ...rest, endToken, skipped: new Set(ends.flatMap((end, i) => (maySkip(end, i) ? [i] : []))) };
  });

describe('random transfers', () => {
  it('arrive, with resume points exactly where every row before them that is needed is there', async () => {
    await fc.assert(
      fc.asyncProperty(cases, async (of) => {
        const receiver = new TransferReceiver({
          ...receiverOptions(of),
        });
        const { geometry, firstToken } = of;
        const held = (row: number): boolean => row < firstToken;
        const present = geometry.layers.map(() => ({ k: new Set<number>(), v: new Set<number>() }));
        const messages = messagesOf(of);
        for (const message of messages) {
          const event = await receiver.accept(message);
          if (event.type !== 'shard') continue;
          for (const { layer, kind, tokenStart, tokenCount, bytes } of event.parts) {
            expect(bytes.length).toBe(tokenCount * geometry.kvHeads * geometry.headDimension * 2);
            const rows = present[layer]?.[kind];
            const before = rows?.size ?? 0;
            for (let row = tokenStart; row < tokenStart + tokenCount; row++) rows?.add(row);
            expect(rows?.size).toBe(before + tokenCount);
          }
          if (event.chunkComplete === null) continue;
          const { end, resumePoint } = event.chunkComplete;
          const enough = geometry.layers.every((kind, layer) => {
            const from = kind === 'window' ? Math.max(0, end - geometry.windowTokens) : 0;
            for (let row = from; row < end; row++) {
              if (!held(row) && !(present[layer]?.k.has(row) && present[layer]?.v.has(row))) return false;
            }
            return true;
          });
          expect(resumePoint).toBe(enough);
          if (end === of.endToken) expect(resumePoint).toBe(true);
        }
        receiver.end();
      }),
      { numRuns: 150 },
    );
  });
});

/** Everything that one side could send about the standard transfer, right and wrong. */
const shards = shardsOf();
const alphabet: Buffer[] = [
  ...messagesOf(),
  beginMessage({}, strangerKey),
  sealMessage(shards.slice(0, 2)),
  encodeErrorFrame(new MuserError('ENGINE_FAILED', 'x')),
  ...shards.slice(0, 6).map(({ header, payload }) => shardMessage({ ...header, sequence: 2 }, payload)),
];
const right = messagesOf();

describe('random orders of events', () => {
  it('settle once, and are sealed only when the right messages came in the right order', async () => {
    const steps = fc.record({
      prefix: fc.nat(right.length),
      rest: fc.array(fc.nat(alphabet.length - 1), { maxLength: 6 }),
    });
    await fc.assert(
      fc.asyncProperty(steps, async ({ prefix, rest }) => {
        const receiver = newReceiver();
        const messages = [...right.slice(0, prefix), ...rest.map((index) => alphabet[index] ?? Buffer.alloc(0))];
        const accepted: Buffer[] = [];
        let failure: unknown = null;
        for (const message of messages) {
          try {
            await receiver.accept(message);
            expect(failure).toBeNull();
            accepted.push(message);
          } catch (thrown) {
            expect(thrown instanceof MuserError && isErrorCode(thrown.code)).toBe(true);
            if (failure !== null) expect(thrown).toBe(failure);
            failure = thrown;
          }
        }
        expectModel(receiver, accepted, failure);
      }),
      { numRuns: 300 },
    );
  });
});

/** What was accepted without Progress is a beginning of the right messages, and the state follows from it. */
function expectModel(receiver: TransferReceiver, accepted: Buffer[], failure: unknown): void {
  const isProgress = (message: Buffer): boolean => message.equals(right[1] ?? Buffer.alloc(0));
  const needed = right.filter((message) => !isProgress(message));
  const signed = accepted.filter((message) => !isProgress(message));
  signed.forEach((message, index) => expect(message.equals(needed[index] ?? Buffer.alloc(0))).toBe(true));
  const open = signed.length === 0 ? 'awaiting_begin' : signed.length === needed.length ? 'sealed' : 'receiving';
  expect(receiver.state).toBe(failure === null ? open : 'failed');
  if (receiver.state === 'sealed') expect(() => receiver.end()).not.toThrow();
  else expect(() => receiver.end()).toThrow(MuserError);
}

describe('fingerprints', () => {
  it('are equal exactly when geometry and tokenizer are', () => {
    const base = { geometry: receiverOptions().expect.geometry, tokenizerSha256: Buffer.alloc(32, 1) };
    const others: { geometry: Geometry; tokenizerSha256: Uint8Array }[] = [
      { ...base, tokenizerSha256: Buffer.alloc(32, 2) },
      ...(
        [
          { layers: ['window', 'window', 'global', 'window'] },
          { kvHeads: 4 },
          { headDimension: 10 },
          { windowTokens: 9 },
          { ropeBase: 10_000 },
          { ropeLayers: 'all' },
          { vocabularySize: 1001 },
        ] as Partial<Geometry>[]
      ).map((change) => ({ ...base, geometry: { ...base.geometry, ...change } })),
    ];
    const prints = [base, ...others].map((of) => Buffer.from(fingerprintOf(of)).toString('hex'));
    expect(new Set(prints).size).toBe(prints.length);
    expect(fingerprintOf({ ...base })).toEqual(fingerprintOf(base));
  });
});
