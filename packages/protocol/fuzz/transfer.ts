// The decoder's state machine: an input is a course of events, right ones, damaged ones, and wrong ones that a faulty
// producer has signed. Whatever comes, every row is handed out once, in order and whole, and a transfer settles once.
import assert from 'node:assert/strict';
import { Choices, mutated } from '@muser/testing';
import { MuserError } from '../src/errors.js';
import type { Begin, Seal, ShardHeader } from '../src/messages.js';
import type { ReceivedPart, TransferEvent, TransferReceiver } from '../src/transfer/receiver.js';
import { encodeErrorFrame } from '../src/transfer/sender.js';
import {
  beginMessage,
  messagesOf,
  newReceiver,
  sealMessage,
  sha256,
  shardMessage,
  shardsOf,
  type TransferCase,
  standardCase,
} from '../test/support/transfers.js';
import { refusal, valueOf } from './support.js';

const of: TransferCase = {
  ...standardCase,
  endToken: 23,
  chunks: [5, 3, 12],
  skipped: new Set([0]),
  maxPayloadBytes: 512,
};
const ROW_BYTES = of.geometry.kvHeads * of.geometry.headDimension * 2;
const right = messagesOf(of);
const shards = shardsOf(of);
const MAX_EVENTS = 40;
const NUMBERS = [0, 1, 2, 3, 8, 23, 24, 63, 2 ** 14, 2 ** 16, 2 ** 31, 2 ** 32 - 1];

/** What the decoder has been handed, by layer and kind: the rows from firstToken on that are there, and gaps in them. */
class Rows {
  readonly #next = new Map<string, number>();

  take({ layer, kind, tokenStart, tokenCount, bytes }: ReceivedPart): void {
    const key = `${layer}${kind}`;
    assert(of.geometry.layers[layer] !== undefined, 'a layer that the model lacks');
    assert(tokenStart >= (this.#next.get(key) ?? of.firstToken), 'a row came twice');
    const next = this.#next.get(key) ?? of.firstToken;
    if (of.geometry.layers[layer] === 'global') assert.equal(tokenStart, next, 'a row was left out');
    assert(tokenStart + tokenCount <= of.endToken, 'rows beyond the end');
    assert.equal(bytes.length, tokenCount * ROW_BYTES, 'bytes that are no rows');
    this.#next.set(key, tokenStart + tokenCount);
  }

  get whole(): boolean {
    const keys = of.geometry.layers.flatMap((_, layer) => [`${layer}k`, `${layer}v`]);
    return keys.every((key) => this.#next.get(key) === of.endToken);
  }
}

export async function fuzz(input: Buffer): Promise<void> {
  const choose = new Choices(input);
  const receiver = newReceiver(of);
  const rows = new Rows();
  let next = 0;
  let failure: MuserError | null = null;
  for (let events = 0; events < MAX_EVENTS && (!choose.done || events === 0); events += 1) {
    const isRight = choose.integer(0, 3) > 0;
    const message = isRight ? (right[next] ?? Buffer.alloc(0)) : wrongMessage(choose, next);
    try {
      const event = await receiver.accept(message);
      assert.equal(failure, null, 'accepted something after its failure');
      check(event, rows);
      next = isRight ? next + 1 : next;
    } catch (thrown) {
      const error = refusal(thrown);
      assert.equal(receiver.state, 'failed');
      assert(failure === null || failure === error, 'failed twice, with different errors');
      failure = error;
    }
  }
  checkEnd(receiver, failure, rows);
}

function check(event: TransferEvent, rows: Rows): void {
  if (event.type === 'shard') for (const part of event.parts) rows.take(part);
  if (event.type === 'shard' && event.chunkComplete?.end === of.endToken) assert(event.chunkComplete.resumePoint);
  if (event.type === 'sealed') assert(rows.whole, 'sealed before every row was there');
}

function checkEnd(receiver: TransferReceiver, failure: MuserError | null, rows: Rows): void {
  const { state } = receiver;
  try {
    receiver.end();
    assert(state === 'sealed' && rows.whole, 'ended well without a Seal');
  } catch (thrown) {
    const error = refusal(thrown);
    if (failure === null) assert.equal(error.code, 'TRANSFER_TRUNCATED');
    else assert.equal(error, failure);
  }
}

function wrongMessage(choose: Choices, next: number): Buffer {
  const kinds: (() => Buffer)[] = [
    () => mutated(choose, right[next] ?? Buffer.alloc(8), right),
    () => choose.pick(right),
    () => choose.bytes(choose.integer(0, 64)),
    () => beginMessage(changedBegin(choose)),
    () => signedShard(choose, next),
    () => sealMessage(shards.slice(0, choose.integer(0, shards.length)), changedSeal(choose)),
    () => encodeErrorFrame(new MuserError('ENGINE_FAILED', 'x'.repeat(choose.integer(0, 40)))),
  ];
  // What cannot even be encoded cannot be sent.
  return valueOf(choose.pick(kinds))?.result ?? Buffer.alloc(0);
}

function changedBegin(choose: Choices): Partial<Begin> {
  // Begin's own rules are kept, so that it is the receiver that has to refuse it.
  const firstToken = choose.pick([0, of.firstToken, of.firstToken + 1]);
  const endToken = choose.pick([of.endToken, of.endToken + 1, 2 ** 16]);
  return {
    firstToken,
    endToken,
    geometry: choose.pick([of.geometry, { ...of.geometry, kvHeads: 1 }, { ...of.geometry, windowTokens: 7 }]),
    wireType: choose.pick(['f16', 'bf16']),
    chunkTokens: choose.pick([1, 12, 2 ** 14]),
    requestDigest: choose.pick([Buffer.alloc(32, 6), Buffer.alloc(32)]),
  };
}

/** A shard that a faulty producer has signed: its header may say anything that can be encoded, its payload has any length. */
function signedShard(choose: Choices, next: number): Buffer {
  const { header, payload } = shards[Math.max(0, next - 2) % shards.length] ?? choose.pick(shards);
  const changed: ShardHeader = { ...header };
  for (let changes = choose.integer(1, 3); changes > 0; changes -= 1) {
    const field = choose.pick([
      'sequence',
      'chunkIndex',
      'chunkStart',
      'chunkEnd',
      'windowStart',
      'tokenStart',
      'tokenCount',
    ] as const);
    changed[field] =
      choose.integer(0, 1) === 0 ? choose.pick(NUMBERS) : Math.max(0, header[field] + choose.integer(-2, 2));
  }
  if (choose.integer(0, 2) === 0)
    changed.parts = [...header.parts, { layer: choose.integer(0, 5), kind: choose.pick(['k', 'v']) }];
  if (choose.integer(0, 2) === 0) changed.parts = header.parts.slice(choose.integer(0, 1));
  const bytes =
    choose.integer(0, 1) === 0
      ? payload
      : Buffer.alloc(changed.parts.length * Math.min(changed.tokenCount, 64) * ROW_BYTES);
  const isConsistent = choose.integer(0, 3) > 0;
  changed.payloadBytes = isConsistent ? bytes.length : choose.pick(NUMBERS);
  changed.payloadSha256 = isConsistent ? sha256(bytes) : header.payloadSha256;
  return shardMessage(changed, bytes);
}

function changedSeal(choose: Choices): Partial<Seal> {
  return choose.pick<() => Partial<Seal>>([
    () => ({}),
    () => ({ shards: choose.pick(NUMBERS.slice(1)) }),
    () => ({ payloadBytes: choose.pick(NUMBERS) }),
    () => ({ chunks: choose.pick(NUMBERS.slice(1)) }),
    () => ({ endToken: choose.pick(NUMBERS.slice(1)) }),
    () => ({ headersDigest: Buffer.alloc(32) }),
    () => ({ requestDigest: Buffer.alloc(32) }),
  ])();
}

export function seeds(): [string, Buffer][] {
  return [
    ['right-transfer', Buffer.alloc(right.length, 1)],
    ['nothing', Buffer.alloc(0)],
    ...Array.from({ length: 7 }, (_, kind): [string, Buffer] => {
      const course = Buffer.alloc(right.length + 8, 1);
      // One wrong message after a few right ones.
      course.set([0, kind, 3, 1, 4, 1, 5, 9], 3 + (kind % 3));
      return [`wrong-${kind}`, course];
    }),
  ];
}
