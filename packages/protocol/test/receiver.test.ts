import { describe, expect, it } from 'vitest';
import { ERROR_CODES, type ErrorCode, MuserError } from '../src/errors.js';
import { frameSchema } from '../src/messages.js';
import { TransferReceiver, type TransferEvent } from '../src/transfer/receiver.js';
import { encodeErrorFrame } from '../src/transfer/sender.js';
import { expectCode, failureOf } from './support/errors.js';
import type { beginOf } from './support/transfers.js';
import {
  beginMessage,
  geometry,
  messagesOf,
  newReceiver,
  nonce,
  receiverOptions,
  sealMessage,
  sha256,
  shardMessage,
  shardsOf,
  strangerKey,
} from './support/transfers.js';

const shards = shardsOf();
const shardAt = (index: number) => {
  const shard = shards[index];
  if (shard === undefined) throw new Error(`no shard ${index}`);
  return shard;
};
/** The first `count` right shards as messages. */
const firstShards = (count: number): Buffer[] =>
  shards.slice(0, count).map(({ header, payload }) => shardMessage(header, payload));
const progress = frameSchema.encode({
  kind: 'progress',
  value: { queuePosition: 0, tokensPrefilled: 0, tokensTotal: 0 },
});

async function acceptAll(receiver: TransferReceiver, messages: readonly Buffer[]): Promise<TransferEvent[]> {
  const events: TransferEvent[] = [];
  for (const message of messages) events.push(await receiver.accept(message));
  return events;
}

/** All messages but the last are accepted; the last fails with the code, and so does everything after it. */
async function expectLastRefused(code: ErrorCode, messages: readonly Buffer[]): Promise<MuserError> {
  const receiver = newReceiver();
  await acceptAll(receiver, messages.slice(0, -1));
  const error = await expectCode(() => receiver.accept(messages.at(-1) ?? Buffer.alloc(0)), code);
  expect(receiver.state).toBe('failed');
  expect(await failureOf(() => receiver.accept(beginMessage()))).toBe(error);
  expect(await failureOf(() => receiver.end())).toBe(error);
  return error;
}

describe('a right transfer', () => {
  it('gives every row once, chunk by chunk, and its resume points', async () => {
    const receiver = newReceiver();
    const events = await acceptAll(receiver, messagesOf());
    receiver.end();
    expect(receiver.state).toBe('sealed');
    expect(events.map((event) => event.type)).toEqual(['begin', 'progress', ...shards.map(() => 'shard'), 'sealed']);
    const received = events.flatMap((event) => (event.type === 'shard' ? [event] : []));
    expect(received.map(({ parts }) => Buffer.concat(parts.map(({ bytes }) => bytes)))).toEqual(
      shards.map(({ payload }) => payload),
    );
    const chunks = received.flatMap(({ chunkComplete }) => (chunkComplete === null ? [] : [chunkComplete]));
    expect(chunks).toEqual([
      { start: 3, end: 8, windowStart: 3, resumePoint: true },
      { start: 8, end: 20, windowStart: 20, resumePoint: false },
      { start: 20, end: 28, windowStart: 28, resumePoint: false },
      { start: 28, end: 32, windowStart: 28, resumePoint: false },
      { start: 32, end: 52, windowStart: 44, resumePoint: true },
      { start: 52, end: 60, windowStart: 52, resumePoint: true },
    ]);
    expect(events.at(-1)).toMatchObject({ totals: { shards: shards.length, chunks: 6, endToken: 60 } });
  });

  it('is accepted with payloads that are hashed elsewhere, several at once', async () => {
    const waiting: (() => void)[] = [];
    const receiver = new TransferReceiver({
      ...receiverOptions(),
      hash: (payload) =>
        new Promise((resolve) => {
          const shard = shards.find((candidate) => candidate.payload.equals(payload));
          waiting.push(() => resolve(shard?.header.payloadSha256 ?? Buffer.alloc(32)));
        }),
    });
    const settled: number[] = [];
    const events = messagesOf().map((message, index) =>
      receiver.accept(message).then((event) => {
        settled.push(index);
        return event.type;
      }),
    );
    await Promise.all(events.slice(0, 2));
    expect(receiver.state).toBe('receiving');
    expect(waiting).toHaveLength(shards.length);
    for (const finish of waiting.reverse()) finish();
    expect((await Promise.all(events)).at(-1)).toBe('sealed');
    expect(settled).toEqual(events.map((_, index) => index));
    expect(receiver.state).toBe('sealed');
  });

  it('is the decoder its own when a shard is hashed wrongly, for everything that is under way', async () => {
    const receiver = new TransferReceiver({ ...receiverOptions(), hash: () => Promise.resolve(Buffer.alloc(32)) });
    const results = await Promise.allSettled(messagesOf().map((message) => receiver.accept(message)));
    const codes = results.map((result) => (result.status === 'rejected' ? (result.reason as MuserError).code : 'ok'));
    expect(codes).toEqual(['ok', 'ok', ...shards.map(() => 'DIGEST_MISMATCH'), 'DIGEST_MISMATCH']);
    expect(receiver.state).toBe('failed');
  });

  it('hands out what came before an Error although it is still being hashed', async () => {
    let finish = (_: Uint8Array): void => undefined;
    const hash = (): Promise<Uint8Array> => new Promise((resolve) => (finish = resolve));
    const receiver = new TransferReceiver({ ...receiverOptions(), hash });
    await receiver.accept(beginMessage());
    const shard = receiver.accept(firstShards(1)[0] ?? Buffer.alloc(0));
    const error = expectCode(
      () => receiver.accept(encodeErrorFrame(new MuserError('ENGINE_FAILED', 'x'))),
      'ENGINE_FAILED',
    );
    const afterwards = expectCode(() => receiver.accept(firstShards(2)[1] ?? Buffer.alloc(0)), 'ENGINE_FAILED');
    finish(shardAt(0).header.payloadSha256);
    expect((await shard).type).toBe('shard');
    expect(await afterwards).toBe(await error);
    expect(receiver.state).toBe('failed');
  });

  it('fails with INTERNAL when hashing itself fails', async () => {
    const receiver = new TransferReceiver({
      ...receiverOptions(),
      hash: () => Promise.reject(new Error('no worker')),
    });
    await receiver.accept(beginMessage());
    await expectCode(() => receiver.accept(firstShards(1)[0] ?? Buffer.alloc(0)), 'INTERNAL');
  });
});

describe('order', () => {
  it('refuses everything but Begin and Error at first', async () => {
    await expectLastRefused('ORDER_VIOLATION', firstShards(1));
    await expectLastRefused('ORDER_VIOLATION', [progress]);
    await expectLastRefused('ORDER_VIOLATION', [sealMessage(shards)]);
  });

  // promise: A second or replayed Begin is refused.
  it('refuses a second Begin, also one that is replayed', () =>
    expectLastRefused('ORDER_VIOLATION', [beginMessage(), beginMessage()]));

  it('refuses a shard that is left out, sent twice, or of another chunk', async () => {
    const [first, second, third] = firstShards(3) as [Buffer, Buffer, Buffer];
    await expectLastRefused('ORDER_VIOLATION', [beginMessage(), second]);
    await expectLastRefused('ORDER_VIOLATION', [beginMessage(), first, third]);
    await expectLastRefused('DUPLICATE_SHARD', [beginMessage(), first, first]);
    const { header, payload } = shardAt(0);
    const jump = shardMessage({ ...header, chunkIndex: 1 }, payload);
    await expectLastRefused('ORDER_VIOLATION', [beginMessage(), jump]);
  });

  it('refuses a shard of an earlier chunk under a new sequence number', async () => {
    const { header, payload } = shardAt(0);
    const lastOfChunk = shards.filter((shard) => shard.header.chunkIndex === 0).length;
    const again = shardMessage({ ...header, sequence: lastOfChunk }, payload);
    await expectLastRefused('DUPLICATE_SHARD', [beginMessage(), ...firstShards(lastOfChunk), again]);
  });

  it('refuses rows that come twice, in one shard or in two', async () => {
    const { header, payload } = shardAt(0);
    const again = shardMessage({ ...header, sequence: 1 }, payload);
    await expectLastRefused('DUPLICATE_SHARD', [beginMessage(), ...firstShards(1), again]);
    const [part] = header.parts;
    if (part === undefined) throw new Error('no part');
    const twice = { ...header, parts: header.parts.map(() => part) };
    await expectLastRefused('DUPLICATE_SHARD', [beginMessage(), shardMessage(twice, payload)]);
  });

  it('refuses rows that come too early', async () => {
    const { header, payload } = shardAt(0);
    const rows = header.tokenCount - 1;
    const bytes = (payload.length / header.tokenCount) * rows;
    const late = { ...header, tokenStart: header.tokenStart + 1, tokenCount: rows, payloadBytes: bytes };
    await expectLastRefused('ORDER_VIOLATION', [beginMessage(), shardMessage(late, payload.subarray(0, bytes))]);
  });

  it('refuses anything after the Seal', async () => {
    const messages = messagesOf();
    await expectLastRefused('TRAILING_DATA', [...messages, progress]);
    await expectLastRefused('TRAILING_DATA', [...messages, messages.at(-1) ?? progress]);
    await expectLastRefused('TRAILING_DATA', [...messages, Buffer.from('junk')]);
  });
});

describe('Begin', () => {
  it.each([
    ['PEER_IDENTITY', { producerId: 'n'.padEnd(27, 'a') }],
    ['DIGEST_MISMATCH', { nonce: Buffer.alloc(16, 99) }],
    ['DIGEST_MISMATCH', { requestDigest: Buffer.alloc(32, 99) }],
    ['MODEL_MISMATCH', { fingerprint: Buffer.alloc(32, 99) }],
    ['GEOMETRY_MISMATCH', { geometry: { ...geometry, headDimension: 16 } }],
    ['GEOMETRY_MISMATCH', { geometry: { ...geometry, layers: ['window', 'window', 'global', 'global'] } }],
    ['GEOMETRY_MISMATCH', { geometry: { ...geometry, ropeBase: 10_000 } }],
    ['GEOMETRY_MISMATCH', { wireType: 'bf16' }],
    ['RANGE_VIOLATION', { firstToken: 2 }],
    ['RANGE_VIOLATION', { endToken: 61 }],
  ] as const)('%s for %o', (code, changes) =>
    expectLastRefused(code, [beginMessage(changes as Partial<ReturnType<typeof beginOf>>)]).then(() => undefined),
  );

  it('of another key or for another nonce is refused', async () => {
    await expectLastRefused('SIGNATURE_INVALID', [beginMessage({}, strangerKey)]);
    await expectLastRefused('SIGNATURE_INVALID', [
      beginMessage({ nonce: Buffer.alloc(16, 8) }, undefined, Buffer.alloc(16, 8)),
    ]);
  });

  it('with a signature that was made for a Seal is refused', async () => {
    const seal = frameSchema.decode(sealMessage(shards));
    if (seal.kind !== 'seal') throw new Error('not a seal');
    await expectLastRefused('SIGNATURE_INVALID', [frameSchema.encode({ kind: 'begin', value: seal.value })]);
  });
});

describe('a shard', () => {
  const first = shardAt(0);
  /** A first shard of global layer 3's K alone, right in everything that `changes` does not concern. */
  const globalShard = (changes: Partial<typeof first.header>): Buffer => {
    const { tokenCount = 5, parts = [{ layer: 3, kind: 'k' as const }] } = changes;
    const payload = Buffer.alloc(tokenCount * parts.length * 32, 1);
    const own = { tokenCount, parts, payloadBytes: payload.length, payloadSha256: sha256(payload) };
    return shardMessage({ ...first.header, ...own, ...changes }, payload);
  };

  it.each([{}, { chunkEnd: 23, windowStart: 15 }, { tokenCount: 4 }, { chunkEnd: 20, windowStart: 20 }])(
    'within its range is accepted: %o',
    async (changes) => {
      const receiver = newReceiver();
      const events = await acceptAll(receiver, [beginMessage(), globalShard(changes)]);
      expect(events.at(-1)).toMatchObject({ type: 'shard', chunkComplete: null });
    },
  );

  it.each([
    [{ chunkStart: 4, tokenStart: 4, tokenCount: 4, windowStart: 4 }, 'does not continue 3'],
    [{ chunkStart: 2, tokenStart: 2, windowStart: 3 }, 'does not continue 3'],
    [{ chunkEnd: 61, windowStart: 53 }, 'within 60'],
    [{ chunkEnd: 3, windowStart: 3 }, 'does not continue 3'],
    [{ chunkEnd: 24, windowStart: 16 }, 'longer than 20 tokens'],
    [{ windowStart: 4 }, 'has window rows from 4, expected 3'],
    [{ windowStart: 2 }, 'has window rows from 2, expected 3'],
    [{ tokenStart: 2 }, '5 rows from 2 are not in the chunk'],
    [{ tokenCount: 6 }, '6 rows from 3 are not in the chunk'],
    [{ payloadBytes: 159 }, 'are 160 bytes, the header says 159'],
    [{ parts: [{ layer: 4, kind: 'k' as const }] }, 'layer 4 of 4'],
  ])('outside its range is refused: %o', async (changes, problem) => {
    const error = await expectLastRefused('RANGE_VIOLATION', [beginMessage(), globalShard(changes)]);
    expect(error.message).toContain(problem);
  });

  it.each(['chunkStart', 'chunkEnd', 'windowStart'] as const)('that changes %s half-way is refused', async (field) => {
    const { header, payload } = shardAt(1);
    const other = shardMessage({ ...header, [field]: header[field] + 1 }, payload);
    const error = await expectLastRefused('RANGE_VIOLATION', [beginMessage(), ...firstShards(1), other]);
    expect(error.message).toContain('half-way');
  });

  it('of a window layer with rows before the window is refused', async () => {
    const index = shards.findIndex(({ header }) => header.chunkIndex === 4);
    const { header } = shardAt(index);
    const bytes = header.tokenCount * 32;
    const early = { ...header, parts: [{ layer: 0, kind: 'k' as const }], payloadBytes: bytes };
    const message = shardMessage(early, Buffer.alloc(bytes));
    await expectLastRefused('RANGE_VIOLATION', [beginMessage(), ...firstShards(index), message]);
  });

  it('may not skip the window rows that the end needs', async () => {
    const index = shards.findIndex(({ header }) => header.chunkIndex === 5);
    const { header } = shardAt(index);
    const payload = Buffer.alloc(header.tokenCount * 32);
    const parts = [{ layer: 3, kind: 'k' as const }];
    const own = { parts, payloadBytes: payload.length, payloadSha256: sha256(payload) };
    const skipping = shardMessage({ ...header, ...own, windowStart: header.chunkEnd }, payload);
    const error = await expectLastRefused('RANGE_VIOLATION', [beginMessage(), ...firstShards(index), skipping]);
    expect(error.message).toContain('has window rows from 60, expected 52');
  });

  // promise: A shard whose payload was changed is refused.
  it('with another payload than the signed one is refused', async () => {
    const other = Buffer.from(first.payload);
    other[other.length - 1] = 1 ^ (other.at(-1) ?? 0);
    await expectLastRefused('DIGEST_MISMATCH', [beginMessage(), shardMessage(first.header, other)]);
    const short = first.payload.subarray(1);
    await expectLastRefused('DIGEST_MISMATCH', [beginMessage(), shardMessage(first.header, short)]);
    // A producer that signs the digest of a payload of another length than it says.
    for (const payload of [short, Buffer.concat([first.payload, Buffer.alloc(1)])]) {
      const message = shardMessage({ ...first.header, payloadSha256: sha256(payload) }, payload);
      await expectLastRefused('DIGEST_MISMATCH', [beginMessage(), message]);
    }
  });

  // promise: A shard that another key signed, or that was signed for another transfer, is refused: replays do not fit.
  // fault: mixed-cache-entries
  it('of another key or another transfer is refused', async () => {
    const { header, payload } = first;
    await expectLastRefused('SIGNATURE_INVALID', [beginMessage(), shardMessage(header, payload, strangerKey)]);
    const replayed = shardMessage(header, payload, undefined, Buffer.alloc(16, 8));
    await expectLastRefused('SIGNATURE_INVALID', [beginMessage(), replayed]);
  });
});

describe('the Seal', () => {
  const upToSeal = messagesOf().slice(0, -1);

  it.each([
    ['DIGEST_MISMATCH', { requestDigest: Buffer.alloc(32, 99) }],
    ['DIGEST_MISMATCH', { headersDigest: Buffer.alloc(32, 99) }],
    ['TOTALS_MISMATCH', { shards: shards.length + 1 }],
    ['TOTALS_MISMATCH', { payloadBytes: 1 }],
    ['TOTALS_MISMATCH', { chunks: 5 }],
    ['TOTALS_MISMATCH', { endToken: 59 }],
  ] as const)('%s for %o', (code, changes) =>
    expectLastRefused(code, [...upToSeal, sealMessage(shards, changes)]).then(() => undefined),
  );

  it('of another key is refused', () =>
    expectLastRefused('SIGNATURE_INVALID', [...upToSeal, sealMessage(shards, {}, strangerKey)]).then(() => undefined));

  it('before all rows came is refused, with totals that match and with those of the whole', async () => {
    const all = [beginMessage(), ...firstShards(shards.length)];
    for (const count of [1, shards.length - 1]) {
      await expectLastRefused('TOTALS_MISMATCH', [...all.slice(0, count + 1), sealMessage(shards.slice(0, count))]);
      await expectLastRefused('TOTALS_MISMATCH', [...all.slice(0, count + 1), sealMessage(shards)]);
    }
    const chunkEnd = shards.filter(({ header }) => header.chunkIndex < 5).length;
    const matching = sealMessage(shards.slice(0, chunkEnd));
    await expectLastRefused('TOTALS_MISMATCH', [...all.slice(0, chunkEnd + 1), matching]);
  });
});

describe('the end of the stream', () => {
  // promise: A transfer that ends without its Seal has failed, however much of it came.
  // fault: partial-handoff
  it.each([0, 1, 2, 3, 10])('without a Seal after %i messages is TRANSFER_TRUNCATED', async (count) => {
    const receiver = newReceiver();
    await acceptAll(receiver, messagesOf().slice(0, count));
    const error = await expectCode(() => receiver.end(), 'TRANSFER_TRUNCATED');
    expect(await failureOf(() => receiver.accept(beginMessage()))).toBe(error);
  });

  it('one message early is TRANSFER_TRUNCATED', async () => {
    const receiver = newReceiver();
    await acceptAll(receiver, messagesOf().slice(0, -1));
    await expectCode(() => receiver.end(), 'TRANSFER_TRUNCATED');
  });
});

describe('an Error frame', () => {
  it.each(Object.keys(ERROR_CODES) as ErrorCode[])('fails the transfer with its code: %s', async (code) => {
    const error = await expectLastRefused(code, [beginMessage(), encodeErrorFrame(new MuserError(code, 'why'))]);
    expect(error.message).toBe('the producer: why');
    expect(error.details).toEqual({ remote: true, peerCode: code });
  });

  it('may come first', () =>
    expectLastRefused('QUEUE_FULL', [encodeErrorFrame(new MuserError('QUEUE_FULL', 'x'))]).then(() => undefined));

  it('with a code that is not known here reads as INTERNAL, without control characters', async () => {
    const value = { code: 'NEW\u001b[31m', message: 'a\r\nb', retryable: true };
    const error = await expectLastRefused('INTERNAL', [frameSchema.encode({ kind: 'error', value })]);
    expect(error.message).toBe('the producer: a  b');
    expect(error.details['peerCode']).toBe('NEW [31m');
  });
});

describe('a message that cannot be read', () => {
  it.each([
    ['nothing', Buffer.alloc(0)],
    ['text', Buffer.from('hello')],
    ['an unknown kind', Buffer.from('f20100', 'hex')],
    ['two kinds', Buffer.concat([progress, encodeErrorFrame(new MuserError('INTERNAL', 'x'))])],
    ['a shortened Begin', beginMessage().subarray(0, -1)],
    ['a Begin with a byte more', Buffer.concat([beginMessage(), Buffer.alloc(1)])],
  ])('%s is MESSAGE_INVALID', (_, message) => expectLastRefused('MESSAGE_INVALID', [message]).then(() => undefined));

  it('above the limit is MESSAGE_TOO_LARGE', () =>
    expectLastRefused('MESSAGE_TOO_LARGE', [Buffer.alloc(2 * 1024 * 1024 + 1)]).then(() => undefined));

  it('with a signed body of another form is MESSAGE_INVALID', async () => {
    const body = Buffer.from('ff', 'hex');
    const { producerKey } = await import('./support/transfers.js');
    const signature = producerKey.sign('muser/1/begin', nonce, body);
    await expectLastRefused('MESSAGE_INVALID', [frameSchema.encode({ kind: 'begin', value: { body, signature } })]);
  });
});
