// What a producer may do wrong, and what becomes of the answer. The network's faults are in network.test.ts.
import {
  encodeErrorFrame,
  generateSigningKey,
  MuserError,
  signingKeyFromSeed,
  type ErrorCode,
  type ProducerEntry,
} from '@muser/protocol';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import type { DecoderConfig } from '../../src/config.js';
import { ask } from '../support/client.js';
import { closedPort } from '../support/closed-port.js';
import { CHUNK_TOKENS, Rig } from '../support/rig.js';
import { EndStream, type Misbehaviour } from '../support/stand-in-producer.js';

let rig: Rig;
beforeAll(async () => {
  rig = await Rig.start();
});
afterEach(() => rig.settled());
afterAll(() => rig?.close());

interface Case {
  readonly name: string;
  readonly code: ErrorCode;
  /** Tokens that are saved; 0: the local prefill starts from the beginning. */
  readonly resumedAt: number | 'all';
  readonly how?: Misbehaviour;
  readonly entry?: () => Partial<ProducerEntry> | Promise<Partial<ProducerEntry>>;
}

const otherKey = signingKeyFromSeed(generateSigningKey().seed);
/** Shards of one chunk of muse-nano: 512 tokens x 8 layers x K and V x 256 bytes = 2 MiB, so 2 shards of 1 MiB. */
const SHARDS_PER_CHUNK = 2;
const FIRST_OF_CHUNK_2 = 2 * SHARDS_PER_CHUNK;

const atShard = (shard: number, change: (frame: Buffer) => Buffer | null): NonNullable<Misbehaviour['frame']> => {
  return (frame, kind, current) => (kind === 'shard' && current === shard ? change(frame) : frame);
};
const flipLastByte = (frame: Buffer): Buffer => {
  const changed = Buffer.from(frame);
  changed[changed.length - 1] = (changed[changed.length - 1] ?? 0) ^ 1;
  return changed;
};
const hang = (signal: AbortSignal): Promise<void> =>
  new Promise((_resolve, reject) =>
    signal.addEventListener('abort', () => reject(signal.reason as Error), { once: true }),
  );

const before: Case[] = [
  {
    name: 'nobody listens',
    code: 'PEER_UNREACHABLE',
    resumedAt: 0,
    entry: async () => ({ addresses: [`127.0.0.1:${await closedPort()}`] }),
  },
  {
    name: 'another node answers at that address',
    code: 'PEER_IDENTITY',
    resumedAt: 0,
    entry: () => ({ nodeId: rig.identities.coordinator.nodeId }),
  },
  {
    name: 'the producer refuses by an Error frame',
    code: 'PRODUCER_DRAINING',
    resumedAt: 0,
    how: {
      beforeBegin: async (call) => {
        await call.send(encodeErrorFrame(new MuserError('PRODUCER_DRAINING', 'it drains')));
        throw new EndStream();
      },
    },
  },
  {
    name: 'the producer refuses by a status',
    code: 'QUEUE_FULL',
    resumedAt: 0,
    how: { beforeBegin: () => Promise.reject(new MuserError('QUEUE_FULL', 'the queue is full')) },
  },
  {
    name: 'the stream ends at once',
    code: 'TRANSFER_TRUNCATED',
    resumedAt: 0,
    how: { beforeBegin: () => Promise.reject(new EndStream()) },
  },
  {
    name: 'Begin is signed by another key',
    code: 'SIGNATURE_INVALID',
    resumedAt: 0,
    how: { sender: (options) => ({ ...options, key: otherKey }) },
  },
  {
    name: 'the geometry is another',
    code: 'GEOMETRY_MISMATCH',
    resumedAt: 0,
    how: { sender: (options) => ({ ...options, geometry: { ...options.geometry, kvHeads: 4 } }) },
  },
  {
    name: 'the model is another',
    code: 'MODEL_MISMATCH',
    resumedAt: 0,
    how: { sender: (options) => ({ ...options, fingerprint: new Uint8Array(32) }) },
  },
  {
    name: 'a frame is garbage',
    code: 'MESSAGE_INVALID',
    resumedAt: 0,
    how: { frame: (frame, kind) => (kind === 'begin' ? Buffer.from('ffffffff', 'hex') : frame) },
  },
];

const during: Case[] = [
  {
    name: 'the stream ends without a Seal',
    code: 'TRANSFER_TRUNCATED',
    resumedAt: 2 * CHUNK_TOKENS,
    how: {
      after: async (kind, shard) => {
        if (kind === 'shard' && shard === FIRST_OF_CHUNK_2) throw new EndStream();
      },
    },
  },
  {
    name: 'the producer fails',
    code: 'ENGINE_FAILED',
    resumedAt: 2 * CHUNK_TOKENS,
    how: {
      after: async (kind, shard, call, sender) => {
        if (kind !== 'shard' || shard !== FIRST_OF_CHUNK_2) return;
        await call.send(sender.error(new MuserError('ENGINE_FAILED', 'out of luck')));
        throw new EndStream();
      },
    },
  },
  {
    name: 'a payload is changed',
    code: 'DIGEST_MISMATCH',
    resumedAt: 2 * CHUNK_TOKENS,
    how: { frame: atShard(FIRST_OF_CHUNK_2, flipLastByte) },
  },
  {
    name: 'a shard is missing',
    code: 'ORDER_VIOLATION',
    resumedAt: 2 * CHUNK_TOKENS,
    how: { frame: atShard(FIRST_OF_CHUNK_2, () => null) },
  },
  {
    name: 'a value is not a number',
    code: 'VALUE_INVALID',
    resumedAt: 2 * CHUNK_TOKENS,
    how: {
      payload: (payload, shard) => {
        if (shard === FIRST_OF_CHUNK_2) payload.writeUInt16LE(0x7e00, 1_000);
        return payload;
      },
    },
  },
  {
    name: 'the first chunk is bad',
    code: 'DIGEST_MISMATCH',
    resumedAt: 0,
    how: { frame: atShard(1, flipLastByte) },
  },
];

const after: Case[] = [
  {
    name: 'the Seal is missing',
    code: 'TRANSFER_TRUNCATED',
    resumedAt: 'all',
    how: { frame: (frame, kind) => (kind === 'seal' ? null : frame) },
  },
  {
    name: 'the Seal is changed',
    code: 'SIGNATURE_INVALID',
    resumedAt: 'all',
    how: { frame: (frame, kind) => (kind === 'seal' ? flipLastByte(frame) : frame) },
  },
  {
    name: 'something follows the Seal',
    code: 'TRAILING_DATA',
    resumedAt: 'all',
    how: {
      after: async (kind, _shard, call) => {
        if (kind === 'seal') await call.send(encodeErrorFrame(new MuserError('INTERNAL', 'late')));
      },
    },
  },
];

describe.each([
  ['before the first shard', before],
  ['in the third chunk', during],
  ['at the end', after],
])('%s', (_when, cases) => {
  // fault: cause-lost
  test.each(cases)('$name: $code', async ({ code, resumedAt, how, entry }) => {
    await rig.offer(await entry?.(), how);
    const { prompt, value } = rig.document(code.length + cases.length, 1_700);
    const { text, muser } = await ask(rig.url, prompt, { prefill: 'remote' });
    expect(text).toContain(value);
    expect(muser.fallback?.code).toBe(code);
    expect(muser.prefill).toBe(resumedAt === 0 ? 'local' : 'resumed');
    const evaluated = await locallyEvaluated();
    if (resumedAt !== 'all') expect(evaluated).toBe(muser.promptTokens - resumedAt);
    expect(muser.producer).not.toBeNull();
  });
});

/** Is called in the midst of a transfer, before its third chunk. */
const inTransfer =
  (does: (signal: AbortSignal) => Promise<void>): NonNullable<Misbehaviour['after']> =>
  async (kind, shard, { signal }) => {
    if (kind === 'shard' && shard === FIRST_OF_CHUNK_2) await does(signal);
  };

// promise: A producer that is revoked loses the transfers that run there as soon as the decoder has the list.
test('a producer that is revoked in a transfer: the reason is that, not our closed connection', async () => {
  const after = inTransfer(async (signal) => {
    rig.coordinator.publish([]);
    await hang(signal);
  });
  await rig.offer({}, { after });
  const { prompt, value } = rig.document(10, 1_700);
  const { text, muser } = await ask(rig.url, prompt, { prefill: 'remote' });
  expect(text).toContain(value);
  expect(muser.fallback).toMatchObject({
    code: 'NODE_REVOKED',
    message: expect.stringContaining('stand-in was revoked') as string,
  });
  expect(muser.promptTokens - (await locallyEvaluated())).toBe(2 * CHUNK_TOKENS);
});

// promise: A transfer goes on while the coordinator has just started, cannot reach its producer, or takes it for broken; no other request goes there.
test.each([
  ['not_heard', 'stand-in has not been heard'],
  ['unreachable', 'stand-in cannot be reached by the coordinator'],
  ['error', 'stand-in is in error'],
  ['other_model', 'stand-in has another model'],
] as const)(
  'a producer that is %s by the coordinator in a transfer keeps it, and gets no other',
  async (reason, why) => {
    const { nodeId, name } = rig.entry();
    const small = rig.document(12, 300);
    const others: Awaited<ReturnType<typeof ask>>[] = [];
    const after = inTransfer(async () => {
      rig.coordinator.publish([], [{ nodeId, name, reason }]);
      await rig.until(async () => (await rig.health()).producers.length === 0);
      others.push(await ask(rig.url, small.prompt, { prefill: 'remote' }));
    });
    await rig.offer({}, { after });
    const { prompt, value } = rig.document(13, 1_700);
    const { text, muser } = await ask(rig.url, prompt, { prefill: 'remote' });
    expect(text).toContain(value);
    expect(muser).toMatchObject({ prefill: 'remote', fallback: null });
    const fallback = { code: 'NO_PRODUCER', message: expect.stringContaining(why) as string };
    expect(others).toMatchObject([
      { text: expect.stringContaining(small.value) as string, muser: { prefill: 'local', producer: null, fallback } },
    ]);
  },
);

describe('a producer that leaves window rows out', () => {
  test('is fine while the last window is there', async () => {
    await rig.offer({}, { skipWindowOf: [0, 1] });
    const { prompt, value } = rig.document(8, 1_800);
    const { text, muser } = await ask(rig.url, prompt, { prefill: 'remote' });
    expect(text).toContain(value);
    expect(muser).toMatchObject({ prefill: 'remote', fallback: null });
  });

  test('and then fails is resumed where a full window was, never where rows are missing', async () => {
    await rig.offer(
      {},
      {
        skipWindowOf: [1],
        // Chunk 1 has one shard, of the global layers alone; this is the first shard of chunk 2.
        after: async (kind, shard) => {
          if (kind === 'shard' && shard === SHARDS_PER_CHUNK + 1) throw new EndStream();
        },
      },
    );
    const { prompt, value } = rig.document(9, 1_800);
    const { text, muser } = await ask(rig.url, prompt, { prefill: 'remote' });
    expect(text).toContain(value);
    expect(muser.fallback?.code).toBe('TRANSFER_TRUNCATED');
    expect([0, CHUNK_TOKENS]).toContain(muser.promptTokens - (await locallyEvaluated()));
  });
});

describe('patience', () => {
  // fault: queued-for-ever
  // fault: lost-message
  test.each<[string, ErrorCode, Partial<DecoderConfig>, Misbehaviour]>([
    ['no Begin comes', 'STALLED', { stallTimeoutMs: 500 }, { beforeBegin: (call) => hang(call.signal) }],
    [
      'nothing more comes',
      'STALLED',
      { stallTimeoutMs: 3_000 },
      {
        after: async (kind, shard, call) => {
          if (kind === 'shard' && shard === SHARDS_PER_CHUNK) await hang(call.signal);
        },
      },
    ],
    [
      'only progress comes until the deadline',
      'DEADLINE_EXCEEDED',
      { transferDeadlineMs: 3_000 },
      {
        after: async (kind, shard, call, sender) => {
          if (kind !== 'shard' || shard !== SHARDS_PER_CHUNK) return;
          while (!call.signal.aborted) {
            await call.send(sender.progress({ queuePosition: 0, tokensPrefilled: 1, tokensTotal: 2 }));
            await new Promise((resolve) => setTimeout(resolve, 20));
          }
          throw new EndStream();
        },
      },
    ],
  ])('ends when %s: %s', async (_name, code, config, how) => {
    const impatient = await Rig.start(config);
    try {
      await impatient.offer({}, how);
      const { prompt, value } = impatient.document(7, 1_300);
      const { text, muser } = await ask(impatient.url, prompt, { prefill: 'remote' });
      expect(text).toContain(value);
      expect(muser.fallback?.code).toBe(code);
      expect(muser.prefill).not.toBe('remote');
      await impatient.settled();
    } finally {
      await impatient.close();
    }
  });
});

/** Tokens that the decoder itself evaluated for the last request, from its log. */
async function locallyEvaluated(): Promise<number> {
  const lines = (await rig.log())
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as Record<string, unknown>);
  const failed = lines.filter((line) => line['msg'] === 'remote prefill failed').at(-1);
  const answered = lines.filter((line) => line['msg'] === 'answered').at(-1);
  return Number(answered?.['promptTokens']) - Number(failed?.['resumedAt']);
}
