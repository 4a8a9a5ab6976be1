import { readFileSync } from 'node:fs';
import { statesTable } from '@muser/testing';
import fc from 'fast-check';
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
  const sendShard = (sender: TransferSender, { header, payload }: (typeof shards)[number]): Buffer =>
    sender.shard(header, payload, header.payloadSha256);
  const sendAll = (sender: TransferSender): void => {
    for (const shard of shards) sendShard(sender, shard);
  };
  /** A refusal leaves the state as it is, but for a shard that was refused half-way. */
  const stateAfter = (state: string, after: string): string =>
    after === after.toLowerCase() ? after : after === 'RANGE_VIOLATION' ? 'broken' : state;
  const sendOutOfRange = (sender: TransferSender, { header, payload }: (typeof shards)[number]): Buffer =>
    sender.shard({ ...header, chunkStart: 0, chunkEnd: 1_000 }, payload, header.payloadSha256);
  const calls: Record<string, (sender: TransferSender) => unknown> = {
    begin: (sender) => sender.begin(),
    progress: (sender) => sender.progress(progress),
    shard: (sender) => sendShard(sender, first),
    'shard out of range': (sender) => sendOutOfRange(sender, first),
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
      expect(() => sendOutOfRange(sender, first)).toThrow(MuserError);
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
    expect(sender.state).toBe(stateAfter(state, after));
  });

  it('holds in any order of calls', async () => {
    const table = new Map(cells('sender').map(([call, state, after]) => [`${call} while ${state}`, after]));
    // Every shard is sent once and in order; the two calls that seal are one, told apart by what was sent before.
    const names = Object.keys(calls).filter((call) => call !== 'seal after every row');
    /** How many shards are sent before the order is left to chance: half the time all of them. */
    const begun = fc.option(fc.oneof(fc.nat(shards.length), fc.constant(shards.length)));
    const withShard: Record<string, (next: (typeof shards)[number]) => (sender: TransferSender) => unknown> = {
      shard: (next) => (sender) => sendShard(sender, next),
      'shard out of range': (next) => (sender) => sendOutOfRange(sender, next),
    };
    const seen = new Set<string>();
    await fc.assert(
      fc.asyncProperty(begun, fc.array(fc.constantFrom(...names), { maxLength: 15 }), async (right, rest) => {
        const order = right === null ? rest : ['begin', ...Array.from({ length: right }, () => 'shard'), ...rest];
        const sender = new TransferSender(senderOptions());
        let state = 'idle';
        let sent = 0;
        for (const name of order) {
          const next = shards[sent];
          // There is none left that would be in order.
          if (name.startsWith('shard') && next === undefined) continue;
          const call = name === 'seal with rows missing' && next === undefined ? 'seal after every row' : name;
          const after = table.get(`${call} while ${state}`) ?? 'no such cell';
          const act = next === undefined ? undefined : withShard[name]?.(next);
          expect(
            await outcomeOf(
              () => (act ?? calls[call])?.(sender),
              () => sender.state,
            ),
            `${call} while ${state}`,
          ).toBe(after);
          if (name === 'shard' && after === 'open') sent += 1;
          state = stateAfter(state, after);
          expect(sender.state).toBe(state);
          seen.add(state);
        }
      }),
      { numRuns: 500 },
    );
    expect([...seen].sort()).toEqual(['broken', 'failed', 'idle', 'open', 'sealed']);
  });

  it('has every call in every state', () => {
    expect(cells('sender')).toHaveLength(Object.keys(calls).length * Object.keys(bring).length);
  });
});
