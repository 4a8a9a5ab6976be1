// Random orders of everything that can happen to a transfer, on a real engine: each settles once, and leaves a cache that
// decoding can go on from.
import { encodeErrorFrame, generateSigningKey, isErrorCode, MuserError, signingKeyFromSeed } from '@muser/protocol';
import { Random } from '@muser/testing';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { FrameSource, TransferResult } from '../../src/ingest/transfer.js';
import { IngestBench, untilAborted, watchTransfer, type RightTransfer, type TransferShape } from '../support/ingest.js';

const SEED = 20_261_130;
const ROUNDS = 150;
const stranger = signingKeyFromSeed(generateSigningKey().seed);

let bench: IngestBench;
beforeAll(async () => {
  bench = await IngestBench.open();
});
afterAll(() => bench.close());

/** How the stream of a transfer goes on after its frames. */
type Ending = 'ends' | 'breaks' | 'hangs until the request is cancelled' | 'hangs until the deadline';

interface Plan {
  readonly shape: TransferShape;
  readonly failInstall: number | null;
  /** What is done to the right frames, in this order. */
  readonly changes: readonly { how: Change; at: number; byte: number }[];
  readonly ending: Ending;
}

type Change = 'drop' | 'repeat' | 'swap' | 'corrupt' | 'junk' | 'foreign' | 'error' | 'progress' | 'cut';

const CHANGES: readonly Change[] = ['drop', 'repeat', 'swap', 'corrupt', 'junk', 'foreign', 'error', 'progress', 'cut'];

function randomPlan(random: Random): Plan {
  const tokens = random.integer(2, 900);
  const chunkTokens = random.integer(60, 400);
  const chunks = Math.ceil((tokens - 1) / chunkTokens);
  // The window rows of a chunk may be left out unless the last window needs them.
  const maySkip = (chunk: number): boolean => (chunk + 1) * chunkTokens <= tokens - 1 - 512;
  const skipped = Array.from({ length: chunks }, (_, chunk) => chunk).filter(
    (chunk) => maySkip(chunk) && random.integer(0, 1) === 0,
  );
  const some = random.integer(0, 3) === 0 ? 0 : random.integer(1, 3);
  const change = () => ({ how: random.pick(CHANGES), at: random.integer(0, 1_000), byte: random.integer(0, 1 << 20) });
  return {
    shape: { tokens, chunkTokens, skipped: new Set(skipped) },
    failInstall: random.integer(0, 4) === 0 ? random.integer(0, chunks - 1) : null,
    changes: Array.from({ length: some }, change),
    ending: random.pick<Ending>([
      'ends',
      'ends',
      'ends',
      'breaks',
      'hangs until the request is cancelled',
      'hangs until the deadline',
    ]),
  };
}

function changed(right: RightTransfer, other: RightTransfer, { changes }: Plan): Buffer[] {
  const frames = [right.begin, ...right.shards, right.seal];
  for (const { how, at, byte } of changes) {
    const index = at % Math.max(1, frames.length);
    const frame = frames[index];
    if (frame === undefined) break;
    if (how === 'drop') frames.splice(index, 1);
    if (how === 'repeat') frames.splice(index, 0, frame);
    if (how === 'swap') frames.splice(index, 2, ...frames.slice(index, index + 2).reverse());
    if (how === 'junk') frames.splice(index, 0, Buffer.from('junk'));
    if (how === 'foreign') frames.splice(index, 1, [other.begin, ...other.shards, other.seal][index] ?? other.seal);
    if (how === 'error') frames.splice(index, 0, encodeErrorFrame(new MuserError('ENGINE_FAILED', 'out of luck')));
    if (how === 'progress') frames.splice(index, 0, right.progress);
    if (how === 'cut') frames.splice(index);
    if (how === 'corrupt') {
      const bytes = Buffer.from(frame);
      bytes[byte % bytes.length]! ^= 1 << (at % 8);
      frames[index] = bytes;
    }
  }
  return frames;
}

/** A right stream may have any number of Progress frames between Begin and Seal. */
function isRight(frames: readonly Buffer[], right: RightTransfer): boolean {
  const needed = [right.begin, ...right.shards, right.seal];
  const first = frames.findIndex((frame) => frame.equals(right.progress));
  const last = frames.findLastIndex((frame) => frame.equals(right.progress));
  if (first === 0 || (last >= 0 && last === frames.length - 1)) return false;
  const rest = frames.filter((frame) => !frame.equals(right.progress));
  return rest.length === needed.length && rest.every((frame, index) => frame.equals(needed[index] ?? right.progress));
}

async function carryOut(plan: Plan) {
  const lease = bench.lease(plan.shape);
  lease.failInstall = plan.failInstall;
  const { observer, told } = watchTransfer();
  const request = new AbortController();
  let right!: RightTransfer;
  let sent: Buffer[] = [];
  let ends = 0;
  const frames: FrameSource = async function* (requestBytes, { signal }) {
    right = bench.answer(requestBytes, plan.shape);
    sent = changed(right, bench.answer(requestBytes, plan.shape, stranger), plan);
    try {
      for (const frame of sent) {
        signal.throwIfAborted();
        yield frame;
      }
      if (plan.ending === 'breaks') throw new MuserError('PEER_UNREACHABLE', 'the connection broke');
      if (plan.ending === 'hangs until the request is cancelled') request.abort(new MuserError('CANCELLED', 'gone'));
      if (plan.ending !== 'ends') await untilAborted(signal);
    } finally {
      ends += 1;
    }
  };
  const settled: { result: TransferResult | null; thrown: unknown }[] = [];
  await bench
    .run(lease, plan.shape, frames, {
      signal: request.signal,
      deadlineMs: plan.ending === 'hangs until the deadline' ? 20 : 60_000,
      observer,
    })
    .then(
      (result) => settled.push({ result, thrown: null }),
      (thrown: unknown) => settled.push({ result: null, thrown }),
    );
  const [outcome = { result: null, thrown: null }] = settled;
  return { ...outcome, lease, told, right, sent, ends, cancelled: request.signal.aborted };
}

type Outcome = Awaited<ReturnType<typeof carryOut>>;

function expectSettled({ result, thrown, lease, right, sent, ends, cancelled }: Outcome, plan: Plan): void {
  expect(ends, 'the call was ended').toBe(1);
  expect(lease.stages.disposed, 'every stage was freed').toBe(lease.stages.made);
  expect(bench.staged.usedBytes, 'every staged byte was given back').toBe(0);
  // Only whole chunks, in order, and none that was not verified.
  expect(lease.installedEnds).toEqual(right.chunks.slice(0, lease.installedEnds.length).map(({ end }) => end));
  const whole = isRight(sent, right) && plan.failInstall === null;
  if (thrown !== null) {
    expect(cancelled).toBe(true);
    expect(thrown).toMatchObject({ code: 'CANCELLED' });
    return;
  }
  if (result === null) throw new Error('it did not settle');
  expect(result.failure === null).toBe(whole && plan.ending === 'ends');
  expect(result.reached === 'installed').toBe(result.failure === null);
  if (result.failure !== null) expect(isErrorCode(result.failure.code)).toBe(true);
  if (result.failedHere) expect(plan.failInstall).not.toBeNull();
  const resumePoints = right.chunks
    .slice(0, lease.installedEnds.length)
    .filter(({ resumePoint }) => resumePoint)
    .map(({ end }) => end);
  expect(result.position).toBe(resumePoints.at(-1) ?? 0);
  expect(lease.sequence.position).toBe(result.position);
}

describe('random orders of what can happen to a transfer', () => {
  // fault: partial-handoff
  test(`${ROUNDS} of them settle once, with all rows or from a resume point`, { timeout: 120_000 }, async () => {
    const random = new Random(SEED);
    const seen = new Set<string>();
    for (let round = 0; round < ROUNDS; round++) {
      const plan = randomPlan(random);
      const described = { ...plan, shape: { ...plan.shape, skipped: [...(plan.shape.skipped ?? [])] } };
      const message = `seed ${SEED}, round ${round}: ${JSON.stringify(described)}`;
      const outcome = await carryOut(plan);
      try {
        expectSettled(outcome, plan);
        const told = outcome.told.length;
        const installed = outcome.lease.installedEnds.length;
        // An engine call of the lease's own comes after whatever the transfer may have left behind.
        await outcome.lease.release();
        expect([outcome.told.length, outcome.lease.installedEnds.length], 'nothing comes later').toEqual([
          told,
          installed,
        ]);
        expect(bench.engine.stats().sequences).toBe(0);
      } catch (cause) {
        throw new Error(message, { cause });
      }
      seen.add(outcome.result === null ? 'cancelled' : (outcome.result.failure?.code ?? outcome.result.reached));
    }
    // The orders are worth something only when they reach the different ends.
    const ends = ['installed', 'cancelled', 'OUT_OF_MEMORY', 'TRANSFER_TRUNCATED', 'PEER_UNREACHABLE', 'ENGINE_FAILED'];
    expect([...seen]).toEqual(expect.arrayContaining([...ends, 'DEADLINE_EXCEEDED', 'SIGNATURE_INVALID']));
  });
});
