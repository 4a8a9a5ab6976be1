/**
 * What every prefill backend must do, whatever engine it has. A backend's own test file calls
 * `describeBackendCompliance` with a way to open it and a way to get the same rows past it.
 */
import { randomUUID } from 'node:crypto';

import {
  chunkBytesOf,
  MAX_PAYLOAD_BYTES,
  MuserError,
  planChunkShards,
  windowStartOf,
  type WireType,
} from '@muser/protocol';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';

import type { PrefillBackend, PrefillChunk, PrefillRun, PrefillTask } from '../src/backend/backend.js';
import { CountingBudget, promptTokens, Rows } from './support/rows.js';

export interface BackendUnderTest {
  /** maxConcurrent 2, chunkTokens 64, maxPromptTokens 2048. */
  open(): Promise<PrefillBackend>;
  /** Rows [0, end) of the prompt's prefill with the same chunks, by any other way than the backend's `prefill`. */
  referenceRows(tokens: Uint32Array, chunkTokens: number): Promise<Rows>;
  /** How far its rows may be from the reference's, relatively; left out when they must be the same bits. */
  tolerance?: number;
  /** Whether rows of an earlier prompt are used again. */
  reuses?: true;
}

const CHUNK = 64;

export function describeBackendCompliance(name: string, subject: BackendUnderTest): void {
  describe(`${name} as a prefill backend`, () => {
    let backend: PrefillBackend;
    let budget: CountingBudget;

    beforeEach(async () => {
      backend = await subject.open();
      budget = new CountingBudget(1 << 30);
    });

    afterEach(async () => {
      // Nothing may be left behind by any of the tests.
      expect(backend.stats()).toEqual({ activePrefills: 0, reservedTokens: 0, unreleasedChunks: 0 });
      expect(budget.usedBytes).toBe(0);
      await backend.close();
    });

    const task = (tokens: Uint32Array, more: Partial<PrefillTask> = {}): PrefillTask => ({
      tokens,
      heldTokens: 0,
      chunkTokens: CHUNK,
      wireType: wireType(),
      // No reuse: what is checked here is computed here.
      cacheScope: randomUUID(),
      staging: budget,
      signal: new AbortController().signal,
      ...more,
    });
    const prompt = (length: number, seed = 1): Uint32Array =>
      promptTokens(length, backend.model.geometry.vocabularySize, seed);
    const wireType = (): WireType => backend.limits.wireTypes[0] ?? 'f16';
    const rowsFor = (tokens: Uint32Array): Rows => new Rows(backend.model.geometry, wireType(), tokens.length - 1);
    const differenceFrom = (expected: Rows, rows: Rows, from = 0): string | null =>
      subject.tolerance === undefined
        ? rows.firstDifference(expected, from)
        : rows.differenceBeyond(expected, subject.tolerance, from);

    /** A chunk has all the window rows that belong to it, or, unless it reaches into the last window, none. */
    const expectWindowRows = ({ start, end, windowStart }: PrefillChunk, rows: number, heldTokens = 0): void => {
      const { geometry } = backend.model;
      const mayBeSkipped = end <= rows - geometry.windowTokens;
      if (mayBeSkipped && windowStart === end) return;
      expect(windowStart).toBe(windowStartOf(geometry, heldTokens, start, end));
    };

    describe('ranges', () => {
      it.each([2, 3, CHUNK, CHUNK + 1, CHUNK + 2, 3 * CHUNK, 1000])(
        'covers all but the last of %i tokens, in order, without gaps',
        async (length) => {
          const tokens = prompt(length);
          const ranges: [number, number][] = [];
          await consume(backend.prefill(task(tokens)), (chunk) => {
            ranges.push([chunk.start, chunk.end]);
            expectWindowRows(chunk, length - 1);
          });
          let expected = 0;
          for (const [start, end] of ranges) {
            expect(start).toBe(expected);
            expect(end - start).toBeLessThanOrEqual(CHUNK);
            expect(end).toBeGreaterThan(start);
            expected = end;
          }
          expect(expected).toBe(length - 1);
        },
      );

      it.each([1, 63, 64, 65, 500, 998])('exports only rows from %i on when so many are held', async (heldTokens) => {
        const tokens = prompt(1000);
        let next = heldTokens;
        await consume(backend.prefill(task(tokens, { heldTokens })), (chunk) => {
          expect(chunk.start).toBe(next);
          expectWindowRows(chunk, 999, heldTokens);
          next = chunk.end;
        });
        expect(next).toBe(999);
      });

      it('takes its own chunk when none is wanted, and never a larger one', async () => {
        for (const chunkTokens of [0, 10_000]) {
          const lengths: number[] = [];
          await consume(backend.prefill(task(prompt(200), { chunkTokens })), (c) => lengths.push(c.end - c.start));
          expect(Math.max(...lengths)).toBe(backend.limits.chunkTokens);
        }
      });

      it('takes smaller chunks when they are wanted', async () => {
        const ends: number[] = [];
        await consume(backend.prefill(task(prompt(23), { chunkTokens: 7 })), (chunk) => ends.push(chunk.end));
        expect(ends).toEqual([7, 14, 21, 22]);
      });
    });

    describe('rows', () => {
      it.each([2, CHUNK + 1, 1000])('equal those of a direct export (%i tokens)', async (length) => {
        const tokens = prompt(length);
        const expected = await subject.referenceRows(tokens, CHUNK);
        const rows = rowsFor(tokens);
        await consume(backend.prefill(task(tokens)), (chunk) => readAll(backend, chunk, rows));
        expect(differenceFrom(expected, rows)).toBeNull();
      });

      it('are the same when the first ones are held', async () => {
        const tokens = prompt(700);
        const expected = await subject.referenceRows(tokens, CHUNK);
        const rows = rowsFor(tokens);
        await consume(backend.prefill(task(tokens, { heldTokens: 300 })), (chunk) => readAll(backend, chunk, rows));
        expect(differenceFrom(expected, rows, 300)).toBeNull();
      });

      it('stay the same until the chunk is released, also when compute has gone on', async () => {
        const tokens = prompt(1000);
        const expected = await subject.referenceRows(tokens, CHUNK);
        const rows = rowsFor(tokens);
        const held: PrefillChunk[] = [];
        const run = backend.prefill(task(tokens));
        for await (const chunk of run) held.push(chunk);
        await run.computed;
        for (const chunk of held.reverse()) {
          await readAll(backend, chunk, rows);
          chunk.release();
        }
        expect(differenceFrom(expected, rows)).toBeNull();
      });

      it('are those of their own prompt when several run at once', async () => {
        const prompts = [prompt(700, 1), prompt(900, 2)];
        const expected = await Promise.all(prompts.map((tokens) => subject.referenceRows(tokens, CHUNK)));
        const received = prompts.map((tokens) => rowsFor(tokens));
        await Promise.all(
          prompts.map((tokens, index) =>
            consume(backend.prefill(task(tokens)), (chunk) => readAll(backend, chunk, received[index] as Rows)),
          ),
        );
        for (const [index, rows] of received.entries()) {
          expect(rows.sameWithin(expected[index] as Rows, 0.05), `prompt ${index}`).toBe(true);
        }
        // Guards the comparison above: another prompt's rows are not within the tolerance.
        expect(received[0]?.sameWithin(expected[1] as Rows, 0.05)).toBe(false);
      });
    });

    // promise: A producer uses rows that it computed for a decoder again for that decoder alone, and only for the same tokens.
    it.runIf(subject.reuses)(
      'reuses the rows of an earlier prompt of the same scope, byte for byte, and of no other',
      async () => {
        const tokens = prompt(900, 77);
        const prefilled = async (cacheScope: string): Promise<{ rows: Rows; reusedTokens: number }> => {
          const rows = rowsFor(tokens);
          const run = backend.prefill(task(tokens, { cacheScope }));
          await consume(run, (chunk) => readAll(backend, chunk, rows));
          await run.computed;
          return { rows, reusedTokens: run.timings.reusedTokens };
        };
        const [one, other] = [randomUUID(), randomUUID()];
        const first = await prefilled(one);
        expect(first.reusedTokens).toBe(0);
        const again = await prefilled(one);
        expect(again.reusedTokens).toBeGreaterThanOrEqual(512);
        expect(again.rows.firstGlobalDifference(first.rows, again.reusedTokens)).toBeNull();
        expect((await prefilled(other)).reusedTokens).toBe(0);
      },
    );

    describe('memory', () => {
      it('computes on while chunks wait, until the staging budget is used up, and no further', async () => {
        const { geometry } = backend.model;
        const tokens = prompt(2000);
        const full = chunkBytesOf(geometry, CHUNK);
        budget = new CountingBudget(3 * full);
        const run = backend.prefill(task(tokens, { staging: budget }));
        await budget.contended();
        expect(budget.usedBytes).toBeGreaterThan(2 * full);
        await consume(run);
        expect(budget.peakBytes).toBeLessThanOrEqual(3 * full);
      });

      // promise: Window rows of earlier chunks are skipped once two chunks wait to be sent, those of the last window never.
      it('skips window rows when the reader is behind, but none of the last window', async () => {
        const { geometry } = backend.model;
        const rows = 1999;
        const held: PrefillChunk[] = [];
        // Nothing is released, so before each chunk as many wait as came.
        for await (const chunk of backend.prefill(task(prompt(rows + 1)))) held.push(chunk);
        const skipped = held.filter((chunk) => chunk.windowStart === chunk.end);
        const expected = held.filter(({ end }, waiting) => waiting >= 2 && end <= rows - geometry.windowTokens);
        expect(expected.length).toBeGreaterThan(0);
        expect(skipped).toEqual(expected);
        for (const chunk of held) {
          expectWindowRows(chunk, rows);
          chunk.release();
        }
      });

      it('gives a chunk back once, however often it is released', async () => {
        await consume(backend.prefill(task(prompt(200))), (chunk) => {
          chunk.release();
          chunk.release();
        });
        expect(budget.usedBytes).toBe(0);
      });
    });

    describe('cancel', () => {
      it('before the start computes nothing', async () => {
        const reason = new MuserError('CANCELLED', 'before');
        const run = backend.prefill(task(prompt(1000), { signal: AbortSignal.abort(reason) }));
        await expect(consume(run)).rejects.toBe(reason);
        await run.computed;
        expect(run.timings.startedAtMs).toBeNull();
      });

      it.each([1, 5])('after chunk %i ends the iteration with the reason and frees everything', async (after) => {
        const controller = new AbortController();
        const reason = new MuserError('DEADLINE_EXCEEDED', 'late');
        let seen = 0;
        const run = backend.prefill(task(prompt(2000), { signal: controller.signal }));
        const consumed = consume(run, () => {
          seen += 1;
          if (seen === after) controller.abort(reason);
        });
        await expect(consumed).rejects.toBe(reason);
        await run.computed;
        expect(run.timings.endedAtMs).toBeNull();
        expect(seen).toBe(after);
      });

      it('while it waits for the staging budget frees everything', async () => {
        budget = new CountingBudget(chunkBytesOf(backend.model.geometry, CHUNK));
        const controller = new AbortController();
        const run = backend.prefill(task(prompt(1000), { staging: budget, signal: controller.signal }));
        await budget.contended();
        controller.abort(new MuserError('CANCELLED', 'test'));
        await run.computed;
      });

      it('by leaving the loop stops compute', async () => {
        const run = backend.prefill(task(prompt(2000)));
        for await (const chunk of run) {
          chunk.release();
          break;
        }
        await run.computed;
        expect(run.timings.endedAtMs).toBeNull();
      });

      it('leaves the engine ready for the next task', async () => {
        const tokens = prompt(300);
        const expected = await subject.referenceRows(tokens, CHUNK);
        for (let round = 0; round < 5; round += 1) {
          const controller = new AbortController();
          const run = backend.prefill(task(prompt(2000, round + 7), { signal: controller.signal }));
          const consumed = consume(run, () => controller.abort(new MuserError('CANCELLED', 'test')));
          await expect(consumed).rejects.toThrow('test');
          await run.computed;
        }
        const rows = rowsFor(tokens);
        await consume(backend.prefill(task(tokens)), (chunk) => readAll(backend, chunk, rows));
        expect(differenceFrom(expected, rows)).toBeNull();
      });

      it('by closing the backend ends what runs', async () => {
        const run = backend.prefill(task(prompt(2000)));
        const consumed = consume(run);
        const refused = expect(consumed).rejects.toMatchObject({ code: 'CANCELLED' });
        await backend.close();
        await refused;
        backend = await subject.open();
      });
    });

    describe('tasks that cannot be done', () => {
      const refusals: [string, (vocabulary: number) => Partial<PrefillTask> & { tokens: Uint32Array }, string][] = [
        ['one token', () => ({ tokens: new Uint32Array(1) }), 'INVALID_REQUEST'],
        ['no token', () => ({ tokens: new Uint32Array(0) }), 'INVALID_REQUEST'],
        ['a token just outside the vocabulary', (v) => ({ tokens: Uint32Array.of(1, v, 1) }), 'INVALID_REQUEST'],
        ['the largest number as a token', () => ({ tokens: Uint32Array.of(1, 0xffffffff) }), 'INVALID_REQUEST'],
        ['too many tokens', () => ({ tokens: new Uint32Array(2049) }), 'PROMPT_TOO_LONG'],
        ['all rows held', () => ({ tokens: new Uint32Array(10), heldTokens: 9 }), 'INVALID_REQUEST'],
        ['fewer than no rows held', () => ({ tokens: new Uint32Array(10), heldTokens: -1 }), 'INVALID_REQUEST'],
        ['half a chunk', () => ({ tokens: new Uint32Array(10), chunkTokens: 0.5 }), 'INVALID_REQUEST'],
      ];
      it.each(refusals)('%s', async (_, make, code) => {
        const { tokens, ...more } = make(backend.model.geometry.vocabularySize);
        await expect(consume(backend.prefill(task(tokens, more)))).rejects.toMatchObject({ code });
      });

      it('fail with CONTEXT_FULL beyond maxConcurrent, and the others go on', async () => {
        const runs = [1, 2, 3].map((seed) => backend.prefill(task(prompt(1500, seed))));
        const outcomes = await Promise.allSettled(runs.map((run) => consume(run)));
        expect(outcomes.map(({ status }) => status)).toEqual(['fulfilled', 'fulfilled', 'rejected']);
        expect((outcomes[2] as PromiseRejectedResult).reason).toMatchObject({ code: 'CONTEXT_FULL' });
      });
    });

    it('tells how far it is, and when it began and ended', async () => {
      const progress: number[] = [];
      const before = performance.now();
      const run = backend.prefill(task(prompt(200), { onProgress: (tokens) => progress.push(tokens) }));
      await consume(run);
      await run.computed;
      expect(progress.at(-1)).toBe(199);
      expect(progress).toEqual([...progress].sort((a, b) => a - b));
      const { startedAtMs, endedAtMs, reusedTokens } = run.timings;
      expect(startedAtMs).toBeGreaterThanOrEqual(before);
      expect(endedAtMs).toBeGreaterThan(startedAtMs ?? Infinity);
      expect(reusedTokens).toBe(0);
    });

    it('describes its model', () => {
      const { identity, geometry } = backend.model;
      expect(identity.fingerprint).toHaveLength(32);
      expect(identity.modelDigest).toHaveLength(32);
      expect(identity.name).not.toBe('');
      expect(geometry.layers.length).toBeGreaterThan(0);
      expect(backend.limits).toMatchObject({ maxPromptTokens: 2048, maxConcurrent: 2, chunkTokens: CHUNK });
    });
  });
}

/** Reads and releases every chunk. */
async function consume(run: PrefillRun, onChunk: (chunk: PrefillChunk) => unknown = () => undefined): Promise<void> {
  for await (const chunk of run) {
    try {
      await onChunk(chunk);
    } finally {
      chunk.release();
    }
  }
}

async function readAll(backend: PrefillBackend, chunk: PrefillChunk, rows: Rows): Promise<void> {
  const { geometry } = backend.model;
  const range = {
    geometry,
    wireType: rows.wireType,
    chunkStart: chunk.start,
    chunkEnd: chunk.end,
    windowStart: chunk.windowStart,
  };
  for (const plan of planChunkShards(range, MAX_PAYLOAD_BYTES)) {
    const payload = new Uint8Array(plan.payloadBytes);
    await chunk.readShard(plan, payload);
    rows.putShard(plan, payload);
  }
}
