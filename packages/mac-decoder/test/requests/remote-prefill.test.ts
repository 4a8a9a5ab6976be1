import { MuserError } from '@muser/protocol';
import { createLogger } from '@muser/service-kit';
import { PeerBudgets } from '@muser/transport';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { FrameSource } from '../../src/ingest/transfer.js';
import { MeasuredRates } from '../../src/placement/rates.js';
import { Circuit } from '../../src/producers/circuit.js';
import { KvSamples } from '../../src/requests/kv-samples.js';
import { ProgressMeter } from '../../src/requests/progress.js';
import { remotePrefill } from '../../src/requests/remote-prefill.js';
import { Timeline } from '../../src/requests/timeline.js';
import { IngestBench, type TransferShape } from '../support/ingest.js';

const SHAPE: TransferShape = { tokens: 100, chunkTokens: 40 };

let bench: IngestBench;
beforeAll(async () => {
  bench = await IngestBench.open();
});
afterAll(() => bench.close());

/** One remote prefill: how it failed, and whether the producer is tried again at once. */
async function prefill(shape: TransferShape, o: { failInstall?: number; ending?: MuserError } = {}) {
  const lease = bench.lease(SHAPE);
  lease.failInstall = o.failInstall ?? null;
  const circuit = new Circuit(() => 0);
  const frames: FrameSource = async function* (requestBytes) {
    await Promise.resolve();
    const { begin, shards, seal } = bench.answer(requestBytes, shape);
    yield* [begin, ...shards];
    if (o.ending !== undefined) throw o.ending;
    yield seal;
  };
  const timeline = new Timeline();
  try {
    const { failure, failedHere } = await remotePrefill({
      ...bench.wanted(SHAPE),
      lease,
      producer: { entry: bench.producer, ticketEndsAt: Infinity, circuit, pace: new Circuit(() => 0) },
      connections: { prefill: (_entry, ...call) => frames(...call) as AsyncGenerator<Buffer, void, undefined> },
      staged: new PeerBudgets({ processBytes: 1, peerBytes: 1 }),
      deadlineMs: 60_000,
      signal: new AbortController().signal,
      pace: null,
      bytesBefore: 0,
      timeline,
      meter: new ProgressMeter(timeline.now, () => undefined),
      rates: new MeasuredRates(),
      samples: new KvSamples({ share: 0, logger: createLogger('decoder', 'silent') }),
      distrust: () => undefined,
    });
    return { code: failure?.code ?? null, failedHere, admits: circuit.admits };
  } finally {
    await lease.release();
  }
}

test('a producer is not avoided for a failure of this decoder', async () => {
  expect(await prefill(SHAPE)).toEqual({ code: null, failedHere: false, admits: true });
  const failed = { code: 'OUT_OF_MEMORY', failedHere: true, admits: true };
  expect(await prefill(SHAPE, { failInstall: 1 })).toEqual(failed);
});

test('a producer is avoided for a broken connection and for rows that no engine takes', async () => {
  const ending = new MuserError('PEER_UNREACHABLE', 'the connection broke');
  expect(await prefill(SHAPE, { ending })).toMatchObject({ code: 'PEER_UNREACHABLE', admits: false });
  const infinite = { ...SHAPE, infiniteShard: 1 };
  expect(await prefill(infinite)).toEqual({ code: 'VALUE_INVALID', failedHere: false, admits: false });
});
