import { describe, expect, it } from 'vitest';
import { MuserError } from '../src/errors.js';
import { frameSchema } from '../src/messages.js';
import { encodeErrorFrame, TransferSender } from '../src/transfer/sender.js';
import { expectCode } from './support/errors.js';
import {
  beginMessage,
  messagesOf,
  sealMessage,
  sealTimes,
  senderOptions,
  shardMessage,
  shardsOf,
} from './support/transfers.js';

const progress = { queuePosition: 1, tokensPrefilled: 0, tokensTotal: 61 };
const shards = shardsOf();

function opened(): TransferSender {
  const sender = new TransferSender(senderOptions());
  sender.begin();
  return sender;
}

function send(sender: TransferSender, index: number): Buffer {
  const shard = shards[index];
  if (shard === undefined) throw new Error(`no shard ${index}`);
  return sender.shard(shard.header, shard.payload, shard.header.payloadSha256);
}

describe('TransferSender', () => {
  it('makes exactly the messages that the schemas describe', () => {
    const expected = [
      beginMessage(),
      frameSchema.encode({ kind: 'progress', value: { ...progress, queuePosition: 0, tokensPrefilled: 1 } }),
      ...shards.map(({ header, payload }) => shardMessage(header, payload)),
      sealMessage(shards),
    ];
    expect(messagesOf().map((message) => message.toString('hex'))).toEqual(
      expected.map((message) => message.toString('hex')),
    );
  });

  it('puts the payload last, so that a message is a prefix and the payload', () => {
    const message = send(opened(), 0);
    const payload = shards[0]?.payload ?? Buffer.alloc(0);
    expect(message.subarray(-payload.length).equals(payload)).toBe(true);
  });

  it('copies the payload, so that its memory can be used again', () => {
    const sender = opened();
    const { header, payload } = shards[0] ?? { header: undefined, payload: undefined };
    if (header === undefined) throw new Error('no shard');
    const reused = Buffer.from(payload);
    const message = sender.shard(header, reused, header.payloadSha256);
    reused.fill(0);
    expect(message.subarray(-payload.length).equals(payload)).toBe(true);
  });

  it('makes nothing but an Error before Begin', async () => {
    const calls: ((sender: TransferSender) => Buffer)[] = [
      (sender) => send(sender, 0),
      (sender) => sender.progress(progress),
      (sender) => sender.seal(sealTimes),
    ];
    for (const call of calls) {
      const sender = new TransferSender(senderOptions());
      await expectCode(() => call(sender), 'SEQUENCE_STATE');
      expect(sender.state).toBe('idle');
    }
    const sender = new TransferSender(senderOptions());
    sender.error(new MuserError('QUEUE_FULL', 'x'));
    expect(sender.state).toBe('failed');
    await expectCode(() => sender.begin(), 'SEQUENCE_STATE');
  });

  it('begins once', () => expectCode(() => opened().begin(), 'SEQUENCE_STATE').then(() => undefined));

  it('refuses a shard out of range and then makes only an Error', async () => {
    const sender = opened();
    const { header, payload } = shards[0] ?? { header: undefined, payload: undefined };
    if (header === undefined) throw new Error('no shard');
    const outside = { ...header, chunkStart: 0 };
    await expectCode(() => sender.shard(outside, payload, header.payloadSha256), 'RANGE_VIOLATION');
    await expectCode(() => send(sender, 0), 'SEQUENCE_STATE');
    await expectCode(() => sender.seal(sealTimes), 'SEQUENCE_STATE');
    sender.error(new MuserError('INTERNAL', 'x'));
  });

  it('seals only when every row was sent', async () => {
    const sender = opened();
    send(sender, 0);
    await expectCode(() => sender.seal(sealTimes), 'TOTALS_MISMATCH');
  });

  it('makes nothing after the Seal, nor after an Error', async () => {
    const sealed = opened();
    shards.forEach((_, index) => send(sealed, index));
    sealed.seal(sealTimes);
    const failed = opened();
    failed.error(new MuserError('INTERNAL', 'x'));
    for (const sender of [sealed, failed]) {
      await expectCode(() => sender.progress(progress), 'SEQUENCE_STATE');
      await expectCode(() => sender.seal(sealTimes), 'SEQUENCE_STATE');
      await expectCode(() => sender.error(new MuserError('INTERNAL', 'x')), 'SEQUENCE_STATE');
    }
  });

  it('refuses a payload that does not fit its header', async () => {
    const { header, payload } = shards[0] ?? { header: undefined, payload: undefined };
    if (header === undefined) throw new Error('no shard');
    await expectCode(() => opened().shard(header, payload.subarray(1), header.payloadSha256), 'RANGE_VIOLATION');
    await expectCode(
      () => opened().shard(header, Buffer.alloc(2 ** 20 + 1), header.payloadSha256),
      'MESSAGE_TOO_LARGE',
    );
    await expectCode(() => opened().shard(header, payload, Buffer.alloc(31)), 'MESSAGE_INVALID');
  });
});

describe('an Error frame', () => {
  it.each([
    ['a'.repeat(2000), 1024],
    ['ä'.repeat(600), 1024],
    [`${'a'.repeat(1023)}ä`, 1023],
    ['😀'.repeat(300), 1024],
    ['short', 5],
  ])('has a message that is cut between characters (%#)', (message, bytes) => {
    const frame = frameSchema.decode(encodeErrorFrame(new MuserError('STALLED', message)));
    if (frame.kind !== 'error') throw new Error('not an error');
    expect(Buffer.byteLength(frame.value.message)).toBe(bytes);
    expect(message.startsWith(frame.value.message)).toBe(true);
    expect(frame.value).toMatchObject({ code: 'STALLED', retryable: true });
  });
});
