// Real gRPC over mutual TLS; the backend is the pattern, whose steps happen when a test lets them.
import { setTimeout as delay } from 'node:timers/promises';

import {
  encodePrefillRequest,
  generateSigningKey,
  MAX_CLOCK_SKEW_MS,
  signingKeyFromSeed,
  TICKET_LIFETIME_MS,
} from '@muser/protocol';
import { beforeEach, describe, expect, it } from 'vitest';

import { PATTERN_GEOMETRY, PatternBackend, patternRows } from './support/pattern-backend.js';
import { backend, bed, decoder, prompt, start, startOn } from './support/pattern-bed.js';
import { NOTHING_LEFT, type RequestOptions, until } from './support/test-bed.js';

describe('a transfer', () => {
  beforeEach(() => start({ maxConcurrent: 2 }));

  it.each([2, 3, 63, 64, 65, 66, 129, 1000, 2048])('of %i tokens verifies and covers every row', async (length) => {
    const tokens = prompt(length);
    const { rows, seal } = await decoder.receive(decoder.request({ tokens }));
    expect(rows.firstDifference(patternRows(tokens))).toBeNull();
    expect(seal.endToken).toBe(length - 1);
    expect(seal.prefillEndUs).toBeGreaterThanOrEqual(seal.prefillStartUs);
  });

  // fault: all-at-the-end
  it.each([1, 64, 100, 997])('sends only what comes after %i held tokens', async (heldTokens) => {
    const tokens = prompt(999);
    const { rows, chunks } = await decoder.receive(decoder.request({ tokens, heldTokens }));
    expect(chunks[0]?.start).toBe(heldTokens);
    expect(rows.firstDifference(patternRows(tokens), heldTokens)).toBeNull();
  });

  it('has chunks of the wanted size', async () => {
    const { chunks } = await decoder.receive(decoder.request({ tokens: prompt(30), chunkTokens: 7 }));
    expect(chunks.map(({ end }) => end)).toEqual([7, 14, 21, 28, 29]);
  });

  it('of two clients at once gives each its own rows', async () => {
    const other = await bed.peer('decoder');
    const prompts = [prompt(1500, 1), prompt(1700, 2)] as const;
    const [first, second] = await Promise.all([
      decoder.receive(decoder.request({ tokens: prompts[0] })),
      other.receive(other.request({ tokens: prompts[1] })),
    ]);
    expect(first.rows.firstDifference(patternRows(prompts[0]))).toBeNull();
    expect(second.rows.firstDifference(patternRows(prompts[1]))).toBeNull();
  });

  it('tells how far the prefill is', async () => {
    const { progress } = await decoder.receive(decoder.request({ tokens: prompt(1000) }));
    expect(progress[0]).toMatchObject({ queuePosition: 0, tokensTotal: 999 });
  });
});

describe('the prefill rate', () => {
  it('is learned from prompts that are long enough to tell', async () => {
    await start();
    await decoder.receive(decoder.request({ tokens: prompt(200) }));
    await bed.idle();
    expect(bed.producer.transfers.load.prefillTokensPerSecond).toBe(0);
    await decoder.receive(decoder.request({ tokens: prompt(300) }));
    await bed.idle();
    expect(bed.producer.transfers.load.prefillTokensPerSecond).toBeGreaterThan(0);
  });
});

describe('a request is refused', () => {
  beforeEach(() => start({ maxPromptTokens: 2048 }));

  const nowMs = Date.now();
  const stranger = signingKeyFromSeed(generateSigningKey().seed);
  const tokens = prompt(100);
  const other = new Uint8Array(32).fill(3);
  const cases: [string, RequestOptions, string][] = [
    ["with a ticket of somebody else's", { tokens, ticketKey: stranger }, 'TICKET_INVALID'],
    [
      'with a ticket for another decoder',
      { tokens, ticketFields: { decoderId: `n${'a'.repeat(26)}` } },
      'TICKET_INVALID',
    ],
    [
      'with a ticket for another producer',
      { tokens, ticketFields: { producerId: `n${'a'.repeat(26)}` } },
      'TICKET_INVALID',
    ],
    ['with a ticket for another model', { tokens, ticketFields: { fingerprint: other } }, 'TICKET_INVALID'],
    ['with a ticket for other weights here', { tokens, ticketFields: { producerModel: other } }, 'TICKET_INVALID'],
    ['with a ticket for other weights there', { tokens, ticketFields: { decoderModel: other } }, 'TICKET_INVALID'],
    ['with a ticket that is over', { tokens, ticketFields: expired(nowMs) }, 'TICKET_EXPIRED'],
    ['with a ticket that has not begun', { tokens, ticketFields: future(nowMs) }, 'CLOCK_SKEW'],
    [
      'with a ticket that lives too long',
      { tokens, ticketFields: { expiresAtMs: nowMs + 2 * TICKET_LIFETIME_MS } },
      'TICKET_INVALID',
    ],
    [
      'with a prompt longer than the ticket allows',
      { tokens, ticketFields: { maxPromptTokens: 99 } },
      'PROMPT_TOO_LONG',
    ],
    ['with a prompt longer than the producer allows', { tokens: prompt(2049) }, 'PROMPT_TOO_LONG'],
    ['for another fingerprint', { tokens, fingerprint: other }, 'MODEL_MISMATCH'],
    ['with a token outside the vocabulary', { tokens: Uint32Array.of(1, 1000, 2) }, 'INVALID_REQUEST'],
    ['with an impossible token', { tokens: Uint32Array.of(1, 2, 0xffffffff) }, 'INVALID_REQUEST'],
    ['for a form of rows that is not offered', { tokens, wireTypes: ['bf16'] }, 'INVALID_REQUEST'],
  ];
  it.each(cases)('%s', async (_, options, code) => {
    await expect(decoder.receive(decoder.request(options))).rejects.toMatchObject({ code });
  });

  // fault: versions-do-not-fit
  it('by another protocol version', async () => {
    const bytes = encodePrefillRequest(decoder.request({ tokens }));
    // Field 1, varint: the version.
    expect([...bytes.subarray(0, 2)]).toEqual([8, 1]);
    bytes[1] = 2;
    await expect(drain(decoder.client.prefill(bytes))).rejects.toMatchObject({ code: 'PROTOCOL_VERSION' });
  });

  it.each(['coordinator', 'producer'] as const)('of a %s', async (role) => {
    const peer = await bed.peer(role);
    await expect(peer.receive(peer.request({ tokens }))).rejects.toMatchObject({ code: 'PERMISSION_DENIED' });
  });

  // promise: A request with the nonce of a running transfer is refused.
  it('when another transfer has its nonce, and not any more when that is over', async () => {
    await bed.close();
    await start({ queueLimit: 4 }, 0);
    const request = decoder.request({ tokens });
    const first = decoder.receive(request);
    await backend.blocked();
    await expect(decoder.receive(request)).rejects.toMatchObject({ code: 'NONCE_ACTIVE' });
    backend.allow(Infinity);
    await first;
    await bed.idle();
    await decoder.receive(request);
  });
});

describe('the queue', () => {
  it('tells each its place, serves in order, and refuses what does not fit', async () => {
    await start({ maxConcurrent: 1, queueLimit: 2 }, 0);
    const order: number[] = [];
    const transfers: Promise<{ progress: { queuePosition: number }[] }>[] = [];
    for (const index of [0, 1, 2]) {
      const received = decoder.receive(decoder.request({ tokens: prompt(100, index) }));
      transfers.push(received.finally(() => order.push(index)));
      await until(() => bed.producer.transfers.load.activeTransfers === index + 1);
    }
    expect(bed.producer.transfers.load.queueLength).toBe(2);
    await expect(decoder.receive(decoder.request({ tokens: prompt(100) }))).rejects.toMatchObject({
      code: 'QUEUE_FULL',
    });
    backend.allow(Infinity);
    const received = await Promise.all(transfers);
    expect(order).toEqual([0, 1, 2]);
    expect(received[2]?.progress.map(({ queuePosition }) => queuePosition)).toEqual([2, 1, 0]);
  });

  it('closes up when one that waits leaves', async () => {
    await start({ maxConcurrent: 1, queueLimit: 3 }, 0);
    const first = decoder.receive(decoder.request({ tokens: prompt(100, 1) }));
    await backend.blocked();
    const leaving = new AbortController();
    const second = decoder.receive(decoder.request({ tokens: prompt(100, 2) }), { signal: leaving.signal });
    const secondEnds = expect(second).rejects.toMatchObject({ code: 'CANCELLED' });
    await until(() => bed.producer.transfers.load.queueLength === 1);
    const positions: number[] = [];
    const third = decoder.receive(decoder.request({ tokens: prompt(100, 3) }), {
      onEvent: (event) => event.type === 'progress' && positions.push(event.progress.queuePosition),
    });
    await until(() => positions.length === 1);
    leaving.abort();
    await secondEnds;
    await until(() => positions.length === 2);
    expect(positions).toEqual([2, 1]);
    backend.allow(Infinity);
    await Promise.all([first, third]);
  });

  // promise: A transfer that waits for others hears of it as long as the engine computes, so it is never taken for stalled.
  it('says to those who wait that the engine lives, as long as it does', async () => {
    await start({ maxConcurrent: 1, queueLimit: 1 }, 0);
    const first = decoder.receive(decoder.request({ tokens: prompt(1000, 1) }));
    await backend.blocked();
    const heard: number[] = [];
    const second = decoder.receive(decoder.request({ tokens: prompt(100, 2) }), {
      onEvent: (event) => event.type === 'progress' && heard.push(event.progress.queuePosition),
    });
    await until(() => heard.length === 1);
    // Longer than the least time between two reminders.
    await delay(2_100);
    expect(heard).toEqual([1]);
    backend.allow(1);
    await until(() => heard.length === 2);
    expect(heard).toEqual([1, 1]);
    backend.allow(Infinity);
    await Promise.all([first, second]);
  });

  it('goes on while the one before still sends to a slow reader', async () => {
    await start({ maxConcurrent: 1 });
    const slow = await bed.peer('decoder');
    let go: () => void = () => {};
    const gate = new Promise<void>((resolve) => (go = resolve));
    const first = slow.receive(slow.request({ tokens: prompt(2000, 1) }), { onEvent: () => gate });
    await until(() => bed.producer.transfers.load.activeTransfers === 1);
    await decoder.receive(decoder.request({ tokens: prompt(2000, 2) }));
    go();
    await first;
  });
});

describe('memory', () => {
  /** 24 KiB a token and 1.5 MiB a chunk: far more in all than what gRPC and TLS hold for a reader that does not read. */
  const LARGE = { ...PATTERN_GEOMETRY, kvHeads: 16, headDimension: 128 };
  const LENGTH = 4096;
  const STAGING = 4 << 20;

  // fault: writes-without-drain
  it('is bounded by bytes for a reader that stops, and the others go on', async () => {
    const pattern = new PatternBackend({ maxConcurrent: 2, maxPromptTokens: LENGTH }, Infinity, LARGE);
    await startOn(pattern, { budgets: { stagingBytesPerTransfer: STAGING, stagingBytes: 2 * STAGING } });
    const slow = await bed.peer('decoder');
    const stream = slow.client.prefill(encodePrefillRequest(slow.request({ tokens: prompt(LENGTH) })));
    const reader = stream[Symbol.asyncIterator]();
    await reader.next();
    // Its compute has come to a stop: the staging is full, and nothing changes any more however long others compute.
    await until(() => bed.producer.transfers.load.stagedBytes > STAGING - (2 << 20));
    for (const seed of [3, 4]) {
      const tokens = prompt(500, seed);
      const { seal } = await decoder.receive(decoder.request({ tokens }), {
        onEvent: () => expect(bed.producer.transfers.load.stagedBytes).toBeLessThanOrEqual(2 * STAGING),
      });
      expect(seal.endToken).toBe(tokens.length - 1);
    }
    expect(backend.stats().activePrefills).toBe(1);
    await reader.return?.();
    expect(await bed.idle()).toEqual(NOTHING_LEFT);
  });

  // promise: A decoder that does not read has a share of the memory that a producer keeps computed rows in, and no more.
  // fault: memory-outside-heap
  it('is bounded for all transfers of one decoder, and another one computes meanwhile', async () => {
    const slowTransfers = 5;
    const pattern = new PatternBackend({ maxConcurrent: 8, maxPromptTokens: LENGTH }, Infinity, LARGE);
    await startOn(pattern, { budgets: { stagingBytesPerTransfer: STAGING, stagingBytes: 6 * STAGING } });
    const slow = await bed.peer('decoder');
    const readers = Array.from({ length: slowTransfers }, (_, index) => {
      const stream = slow.client.prefill(encodePrefillRequest(slow.request({ tokens: prompt(LENGTH, index) })));
      return stream[Symbol.asyncIterator]();
    });
    for (const reader of readers) await reader.next();
    const staged = () => bed.producer.transfers.load.stagedBytes;
    await until(() => staged() > 3 * STAGING - (2 << 20));
    await decoder.receive(decoder.request({ tokens: prompt(500, 9) }));
    // Without the share it would come to a stop at 15 MiB, two chunks for each.
    await until(() => staged() <= 3 * STAGING);
    expect(backend.stats().activePrefills).toBe(slowTransfers);
    for (const reader of readers) await reader.return?.();
    expect(await bed.idle()).toEqual(NOTHING_LEFT);
  });
});

describe('the status', () => {
  it('is for coordinators only and says what the producer does', async () => {
    await start({ maxConcurrent: 1 }, 0);
    await expect(decoder.client.watchNode({ protocolVersion: 1, intervalMs: 100 }).next()).rejects.toMatchObject({
      code: 'PERMISSION_DENIED',
    });
    const first = decoder.receive(decoder.request({ tokens: prompt(1000, 1) }));
    await backend.blocked();
    const second = decoder.receive(decoder.request({ tokens: prompt(1000, 2) }));
    await until(() => bed.producer.transfers.load.queueLength === 1);
    const coordinator = await bed.peer('coordinator');
    const updates = coordinator.client.watchNode({ protocolVersion: 1, intervalMs: 100 });
    expect((await updates.next()).value).toMatchObject({
      nodeId: bed.producer.nodeId,
      state: 'ready',
      queueLength: 1,
      activeTransfers: 2,
      prefillTokensPerSecond: 0,
      backend: 'pattern',
      maxPromptTokens: 2048,
    });
    backend.allow(Infinity);
    await Promise.all([first, second]);
    await bed.idle();
    // Updates from before may be on their way still.
    let latest = (await updates.next()).value;
    while (latest !== undefined && latest.activeTransfers > 0) latest = (await updates.next()).value;
    expect(latest).toMatchObject({ queueLength: 0, activeTransfers: 0 });
    expect(latest?.prefillTokensPerSecond).toBeGreaterThan(0);
    await updates.return();
  });

  it('says why the engine takes nothing, and nothing is taken on', async () => {
    await start({ maxConcurrent: 1 }, Infinity);
    backend.health = { state: 'error', reason: 'the worker ended too often' };
    const coordinator = await bed.peer('coordinator');
    const updates = coordinator.client.watchNode({ protocolVersion: 1, intervalMs: 100 });
    const told = { state: 'error', reason: 'the worker ended too often' };
    expect((await updates.next()).value).toMatchObject(told);
    const refused = decoder.receive(decoder.request({ tokens: prompt(100) }));
    await expect(refused).rejects.toMatchObject({ code: 'UNAVAILABLE', message: told.reason });
    backend.health = { state: 'ready' };
    await decoder.receive(decoder.request({ tokens: prompt(100) }));
    expect((await updates.next()).value).toMatchObject({ state: 'ready', reason: '' });
    await updates.return();
    await bed.idle();
  });
});

function expired(nowMs: number): { issuedAtMs: number; expiresAtMs: number } {
  const expiresAtMs = nowMs - MAX_CLOCK_SKEW_MS - 60_000;
  return { issuedAtMs: expiresAtMs - 60_000, expiresAtMs };
}

function future(nowMs: number): { issuedAtMs: number; expiresAtMs: number } {
  const issuedAtMs = nowMs + MAX_CLOCK_SKEW_MS + 60_000;
  return { issuedAtMs, expiresAtMs: issuedAtMs + 60_000 };
}

async function drain(stream: AsyncIterable<unknown>): Promise<void> {
  for await (const _ of stream);
}
