// Every cell of the producer's table of a whole transfer in docs/PROTOCOL.md; steps happen and frames are taken when the test says so.
import { readFileSync } from 'node:fs';

import {
  encodePrefillRequest,
  generateSigningKey,
  MuserError,
  nodeIdOf,
  type PrefillRequest,
  requestDigestOf,
  signingKeyFromSeed,
  TransferSender,
} from '@muser/protocol';
import { statesTable } from '@muser/testing';
import { ByteBudget } from '@muser/transport';
import { afterEach, describe, expect, it, vi } from 'vitest';

import { ComputeQueue, type QueuePlace } from '../src/transfer/compute-queue.js';
import { Transfer, type TransferOutcome, type TransferState } from '../src/transfer/transfer.js';
import { GatedReader } from './support/gated-reader.js';
import { PatternBackend } from './support/pattern-backend.js';
import { promptTokens } from './support/rows.js';
import { NOTHING_LEFT } from './support/test-bed.js';

const document = readFileSync(new URL('../../../docs/PROTOCOL.md', import.meta.url), 'utf8');
const cells = statesTable(document, 'prefill');
const TOKENS = promptTokens(300, 1000, 1);
const DEADLINE_MS = 30_000;
const key = signingKeyFromSeed(generateSigningKey().seed);

afterEach(() => {
  vi.useRealTimers();
});

/** A transfer with everything around it. */
class Stage {
  readonly backend = new PatternBackend({ maxConcurrent: 1 }, 0);
  readonly queue = new ComputeQueue({ concurrency: 1, queueLimit: 1 });
  readonly staging = new ByteBudget(1 << 30);
  readonly reader: GatedReader;
  readonly transfer: Transfer;
  readonly outcome: Promise<TransferOutcome>;
  /** Of the transfer before; it computes while this one is queued. */
  readonly before: QueuePlace;

  constructor(state: string) {
    this.reader = new GatedReader(state === 'queued' ? 0 : 2);
    this.before = this.queue.join(() => undefined);
    if (state !== 'queued') this.before.leave();
    const { request, digest } = this.#request();
    const { model } = this.backend;
    this.transfer = new Transfer({
      admitted: { request, digest, decoderId: nodeIdOf(key.publicKey), wireType: 'f16', ticketEndsAtMs: Infinity },
      sender: new TransferSender({
        nonce: request.nonce,
        requestDigest: digest,
        producerId: nodeIdOf(key.publicKey),
        key,
        fingerprint: request.fingerprint,
        producerModel: model.identity.modelDigest,
        geometry: model.geometry,
        wireType: 'f16',
        firstToken: 0,
        endToken: TOKENS.length - 1,
        chunkTokens: this.backend.limits.chunkTokens,
      }),
      send: this.reader.send,
      readerGone: this.reader.gone,
      backend: this.backend,
      queue: this.queue,
      staging: this.staging,
      cacheScope: 'test',
      onComputed: () => undefined,
      receivedAtMs: performance.now(),
    });
    this.outcome = this.transfer.run();
  }

  /** Waits until the transfer is in that state and has come to a stop there. */
  async settleIn(state: string): Promise<void> {
    if (state === 'queued') return vi.waitFor(() => expect(this.reader.waits).toBe(true));
    if (state === 'sending') this.backend.allow(Infinity);
    else await this.backend.blocked();
    await vi.waitFor(() => expect([this.transfer.state, this.reader.waits]).toEqual([state, state === 'sending']));
  }

  #request(): { request: PrefillRequest; digest: Uint8Array } {
    const { fingerprint } = this.backend.model.identity;
    const request: PrefillRequest = {
      protocolVersion: 1,
      nonce: new Uint8Array(16),
      ticket: new Uint8Array(1),
      fingerprint,
      decoderModel: new Uint8Array(32),
      tokens: TOKENS,
      heldTokens: 0,
      heldDigest: new Uint8Array(0),
      wireTypes: ['f16'],
      deadlineMs: DEADLINE_MS,
      chunkTokens: 0,
    };
    return { request, digest: requestDigestOf(encodePrefillRequest(request)) };
  }
}

const EVENTS: Record<string, (stage: Stage) => unknown> = {
  'its turn comes': ({ before, reader }) => {
    reader.take(1);
    before.leave();
  },
  'all is computed': ({ backend }) => backend.allow(Infinity),
  'all is sent': ({ reader }) => reader.take(Infinity),
  'reader leaves': ({ reader }) => reader.leave(),
  'reader takes nothing': ({ backend, reader }) => {
    backend.allow(1);
    // In the middle of a send, which is where a transport notices.
    return vi.waitFor(() => expect(reader.waits).toBe(true)).then(() => reader.stall());
  },
  deadline: () => vi.advanceTimersByTime(DEADLINE_MS),
  'cancelled by the producer': ({ transfer }) =>
    transfer.cancel(new MuserError('PRODUCER_DRAINING', 'the producer is closing')),
  'decoder is revoked': ({ transfer }) => transfer.cancel(new MuserError('NODE_REVOKED', 'the node was revoked')),
  'ticket ends': ({ transfer }) => transfer.cancel(new MuserError('TICKET_EXPIRED', 'the ticket ended')),
  'engine fails': ({ backend }) => {
    backend.stepError = new MuserError('ENGINE_FAILED', 'out of luck');
    backend.allow(1);
  },
  'rows cannot be read': ({ backend, reader }) => {
    backend.readError = new Error('secret');
    backend.allow(1);
    reader.take(Infinity);
  },
};

describe('the table of a transfer at the producer', () => {
  it.each(cells)('$event while $state: $after', async ({ event, state, after }) => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
    const stage = new Stage(state);
    await stage.settleIn(state);
    const act = EVENTS[event];
    if (act === undefined) throw new Error(`the test does not know "${event}"`);
    await act(stage);
    const goesOn: TransferState[] = ['prefilling', 'sending'];
    if (goesOn.includes(after as TransferState)) {
      await vi.waitFor(() => expect(stage.transfer.state).toBe(after));
      stage.backend.allow(Infinity);
      stage.reader.take(Infinity);
      expect(await stage.outcome).toMatchObject({ state: 'sealed', error: null });
    } else {
      stage.reader.take(Infinity);
      const { state: end, error, told } = await stage.outcome;
      const ended = after === after.toLowerCase() ? after : 'failed';
      expect(end).toBe(ended);
      if (ended === 'failed') expect(error?.code).toBe(after);
      // Whoever still takes something hears of it.
      const hears = ended === 'failed' && after !== 'STALLED';
      expect(told).toBe(hears);
      expect(stage.reader.errorCode).toBe(hears ? after : null);
    }
    stage.before.leave();
    const { queue, staging, backend } = stage;
    expect([queue.waiting, queue.computing]).toEqual([0, 0]);
    expect({ ...backend.stats(), queueLength: queue.waiting, stagedBytes: staging.usedBytes }).toEqual(NOTHING_LEFT);
  });

  it('has every event in every state in which it can happen', () => {
    const impossible = 9;
    expect(cells).toHaveLength(Object.keys(EVENTS).length * 3 - impossible);
  });
});
