// Every cell of the decoder's table in docs/PROTOCOL.md, on a real engine; the frames come from the test.
import { readFileSync } from 'node:fs';
import { encodeErrorFrame, generateSigningKey, MuserError, signingKeyFromSeed } from '@muser/protocol';
import { statesTable } from '@muser/testing';
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from 'vitest';
import type { FrameSource, TransferState } from '../../src/ingest/transfer.js';
import { IngestBench, untilAborted, watchTransfer, type RightTransfer, type TransferShape } from '../support/ingest.js';

const document = readFileSync(new URL('../../../../docs/PROTOCOL.md', import.meta.url), 'utf8');
const cells = statesTable(document, 'ingest');
const SHAPE: TransferShape = { tokens: 100, chunkTokens: 40 };
const DEADLINE_MS = 30_000;
const stranger = signingKeyFromSeed(generateSigningKey().seed);

let bench: IngestBench;
beforeAll(async () => {
  bench = await IngestBench.open();
});
afterAll(() => bench.close());
afterEach(() => {
  vi.useRealTimers();
  expect(bench.engine.stats().sequences).toBe(0);
});

interface Moment {
  readonly state: string;
  readonly right: RightTransfer;
  /** Right frames that have not been sent. */
  readonly rest: Buffer[];
  readonly answerOf: (shape: TransferShape, key?: typeof stranger) => RightTransfer;
  readonly cancel: () => void;
  readonly letInstallFail: () => void;
}

/** What happens: frames that come, or something that ends the call. `hang` stands for a call that goes on. */
type Happening = (moment: Moment) => Buffer[] | 'hang' | 'end' | MuserError;

const EVENTS: Record<string, Happening> = {
  'right Begin': ({ right }) => [right.begin],
  'right Shard': ({ right }) => right.shards.slice(0, 1),
  // Right only after all shards.
  'right Seal': ({ state, right, rest }) => (state === 'receiving' ? rest : [right.seal]),
  'shard with a number that is infinite': ({ answerOf }) => answerOf({ ...SHAPE, infiniteShard: 0 }).shards.slice(0, 1),
  'message of another key': ({ state, answerOf }) => {
    const { begin, shards } = answerOf(SHAPE, stranger);
    return state === 'requested' ? [begin] : shards.slice(0, 1);
  },
  'Error with ENGINE_FAILED': () => [encodeErrorFrame(new MuserError('ENGINE_FAILED', 'out of luck'))],
  'call ends with QUEUE_FULL': () => new MuserError('QUEUE_FULL', 'the queue is full'),
  'connection breaks': () => new MuserError('PEER_UNREACHABLE', 'the connection broke'),
  'end of stream': () => 'end',
  'install fails': ({ letInstallFail }) => {
    letInstallFail();
    return 'hang';
  },
  deadline: () => {
    vi.advanceTimersByTime(DEADLINE_MS);
    return 'hang';
  },
  'request cancelled': ({ cancel }) => {
    cancel();
    return 'hang';
  },
};

/** How many of the right frames bring a transfer into a state, for an event that is to happen there. */
function sentBefore(right: RightTransfer, state: string, event: string): number {
  if (state === 'requested') return 0;
  if (state === 'sealed') return right.shards.length + 2;
  // An install needs a whole chunk.
  return event === 'install fails' ? 2 + (right.chunks[0]?.lastShard ?? 0) : 1;
}

async function run(event: string, state: string) {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
  const lease = bench.lease(SHAPE);
  const { observer, reached } = watchTransfer();
  const request = new AbortController();
  let ended = 0;
  if (event === 'install fails') {
    lease.failInstall = state === 'sealed' ? 2 : 0;
    lease.failWhen = new Promise((resolve) => (letInstallFail = resolve));
  }
  const frames: FrameSource = async function* (requestBytes, { signal }) {
    const answerOf: Moment['answerOf'] = (shape, key) => bench.answer(requestBytes, shape, key);
    const right = answerOf(SHAPE);
    const all = [right.begin, ...right.shards, right.seal];
    const count = sentBefore(right, state, event);
    try {
      yield* all.slice(0, count);
      if (state !== 'requested') await reached[state as 'receiving' | 'sealed'];
      const cancel = (): void => request.abort(new MuserError('CANCELLED', 'the client is gone'));
      const rest = all.slice(count);
      const happened = EVENTS[event]?.({ state, right, rest, answerOf, cancel, letInstallFail });
      if (happened === undefined) throw new Error(`the test does not know "${event}"`);
      if (happened === 'end') return;
      if (happened instanceof MuserError) throw happened;
      if (happened === 'hang') await untilAborted(signal);
      else yield* happened;
      // A transfer that goes on is ended here, so that its state shows.
      throw new MuserError('STALLED', 'the test ends it');
    } finally {
      ended += 1;
    }
  };
  try {
    const result = await bench.run(lease, SHAPE, frames, {
      signal: request.signal,
      deadlineMs: DEADLINE_MS,
      observer,
    });
    return { result, lease, thrown: null };
  } catch (thrown) {
    return { result: null, lease, thrown };
  } finally {
    await lease.release();
    expect(ended).toBe(1);
    expect(lease.stages.disposed).toBe(lease.stages.made);
  }
}
let letInstallFail = (): void => undefined;

describe('the table of a transfer at the decoder', () => {
  test.each(cells)('$event while $state: $after', async ({ event, state, after }) => {
    const { result, thrown, lease } = await run(event, state);
    if (event === 'request cancelled') {
      expect(thrown).toMatchObject({ code: after });
      return;
    }
    if (after === 'installed') {
      expect(result).toMatchObject({ failure: null, reached: after, position: SHAPE.tokens - 1 });
      return;
    }
    const goesOn = after === after.toLowerCase();
    const expected: { code: string; reached: string } = goesOn
      ? { code: 'STALLED', reached: after }
      : { code: after, reached: state };
    expect({ code: result?.failure?.code, reached: result?.reached }).toEqual(expected);
    expect(result?.failedHere).toBe(event === 'install fails');
    expect(result?.position).toBe(lease.installedEnds.at(-1) ?? 0);
  });

  test('has every event in every state', () => {
    const states: TransferState[] = ['requested', 'receiving', 'sealed'];
    // Before Begin nothing can be installed.
    expect(cells).toHaveLength(Object.keys(EVENTS).length * states.length - 1);
  });
});
