import { readFileSync } from 'node:fs';
import { statesTable } from '@muser/testing';
import { describe, expect, it } from 'vitest';
import { MuserError } from '../src/errors.js';
import { frameSchema } from '../src/messages.js';
import type { TransferReceiver } from '../src/transfer/receiver.js';
import { encodeErrorFrame, TransferSender } from '../src/transfer/sender.js';
import {
  beginMessage,
  messagesOf,
  newReceiver,
  sealMessage,
  sealTimes,
  senderOptions,
  shardMessage,
  shardsOf,
  strangerKey,
} from './support/transfers.js';

const document = readFileSync(new URL('../../../docs/PROTOCOL.md', import.meta.url), 'utf8');

/** [what happens, state before, state or code after] */
const cells = (name: string): [string, string, string][] =>
  statesTable(document, name).map(({ event, state, after }) => [event, state, after]);

async function outcomeOf(call: () => unknown, state: () => string): Promise<string> {
  try {
    await call();
    return state();
  } catch (thrown) {
    expect(thrown).toBeInstanceOf(MuserError);
    return (thrown as MuserError).code;
  }
}

const shards = shardsOf();
const [first] = shards;
if (first === undefined) throw new Error('no shard');
const progress = { queuePosition: 0, tokensPrefilled: 0, tokensTotal: 61 };
const messages = messagesOf();

describe('the decoder’s table of states', () => {
  const events: Record<string, (receiver: TransferReceiver) => unknown> = {
    'right Begin': (receiver) => receiver.accept(beginMessage()),
    'right Progress': (receiver) => receiver.accept(frameSchema.encode({ kind: 'progress', value: progress })),
    'right Shard': (receiver) => receiver.accept(shardMessage(first.header, first.payload)),
    'right Seal': (receiver) => receiver.accept(sealMessage(shards)),
    'wrong signature': (receiver) =>
      receiver.accept(
        receiver.state === 'awaiting_begin'
          ? beginMessage({}, strangerKey)
          : shardMessage(first.header, first.payload, strangerKey),
      ),
    'Error with QUEUE_FULL': (receiver) => receiver.accept(encodeErrorFrame(new MuserError('QUEUE_FULL', 'x'))),
    'undecodable message': (receiver) => receiver.accept(Buffer.from('junk')),
    'end of stream': (receiver) => receiver.end(),
  };
  const sentBefore = (state: string, event: string): Buffer[] => {
    if (state === 'awaiting_begin') return [];
    if (state === 'sealed') return messages;
    return event === 'right Seal' ? messages.slice(0, -1) : messages.slice(0, 1);
  };

  it.each(cells('receiver'))('%s while %s: %s', async (event, state, after) => {
    const receiver = newReceiver();
    for (const message of sentBefore(state, event)) await receiver.accept(message);
    expect(receiver.state).toBe(state);
    const act = events[event];
    if (act === undefined) throw new Error(`the test does not know "${event}"`);
    expect(
      await outcomeOf(
        () => act(receiver),
        () => receiver.state,
      ),
    ).toBe(after);
    expect(receiver.state).toBe(after === after.toLowerCase() ? after : 'failed');
  });

  it('has every event in every state', () => {
    expect(cells('receiver')).toHaveLength(Object.keys(events).length * 3);
  });
});

describe('the producer’s table of states', () => {
  const sendAll = (sender: TransferSender): void => {
    for (const { header, payload } of shards) sender.shard(header, payload, header.payloadSha256);
  };
  const outOfRange = (sender: TransferSender): Buffer =>
    sender.shard({ ...first.header, chunkStart: 0 }, first.payload, first.header.payloadSha256);
  const calls: Record<string, (sender: TransferSender) => unknown> = {
    begin: (sender) => sender.begin(),
    progress: (sender) => sender.progress(progress),
    shard: (sender) => sender.shard(first.header, first.payload, first.header.payloadSha256),
    'shard out of range': outOfRange,
    'seal with rows missing': (sender) => sender.seal(sealTimes),
    'seal after every row': (sender) => sender.seal(sealTimes),
    error: (sender) => sender.error(new MuserError('STALLED', 'x')),
  };
  const bring: Record<string, (sender: TransferSender, call: string) => void> = {
    idle: () => undefined,
    open(sender, call) {
      sender.begin();
      if (call === 'seal after every row') sendAll(sender);
    },
    broken(sender) {
      sender.begin();
      expect(() => outOfRange(sender)).toThrow(MuserError);
    },
    sealed(sender) {
      sender.begin();
      sendAll(sender);
      sender.seal(sealTimes);
    },
    failed(sender) {
      sender.begin();
      sender.error(new MuserError('STALLED', 'x'));
    },
  };

  it.each(cells('sender'))('%s while %s: %s', async (call, state, after) => {
    const sender = new TransferSender(senderOptions());
    bring[state]?.(sender, call);
    expect(sender.state).toBe(state);
    const act = calls[call];
    if (act === undefined) throw new Error(`the test does not know "${call}"`);
    expect(
      await outcomeOf(
        () => act(sender),
        () => sender.state,
      ),
    ).toBe(after);
    const stays = after === after.toLowerCase() ? after : after === 'RANGE_VIOLATION' ? 'broken' : state;
    expect(sender.state).toBe(stays);
  });

  it('has every call in every state', () => {
    expect(cells('sender')).toHaveLength(Object.keys(calls).length * Object.keys(bring).length);
  });
});
