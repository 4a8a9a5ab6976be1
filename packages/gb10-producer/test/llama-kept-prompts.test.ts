// What a prefill by llama.cpp leaves for the next one of the same decoder.
import { randomUUID } from 'node:crypto';

import { loadModel, Engine, type Model } from '@muser/metal';
import { chunkBytesOf, MAX_PAYLOAD_BYTES, MuserError, planChunkShards } from '@muser/protocol';
import { Random } from '@muser/testing';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest';

import type { PrefillTask } from '../src/backend/backend.js';
import { KeptPrompts } from '../src/backend/kept-prompts.js';
import { LlamaBackend } from '../src/backend/llama.js';
import { directRows } from './support/direct-rows.js';
import { MUSE_NANO } from './support/model.js';
import { CountingBudget, promptTokens, Rows } from './support/rows.js';

const CHUNK = 64;
const MAX_PROMPT = 800;
const VOCABULARY = 4096;

const prompt = (length: number, seed = 1): Uint32Array => promptTokens(length, VOCABULARY, seed);
const joined = (...parts: Uint32Array[]): Uint32Array => Uint32Array.from(parts.flatMap((part) => [...part]));

interface Wish {
  readonly heldTokens?: number;
  readonly scope?: string;
  /** Leaves after so many chunks. */
  readonly leaveAfter?: number;
}

describe('a prompt that begins like an earlier one', () => {
  let backend: LlamaBackend;
  let budget: CountingBudget;
  /** Each test has one of its own, which finds nothing of the others. */
  let decoder: string;

  beforeAll(async () => {
    backend = await LlamaBackend.open({
      modelPath: MUSE_NANO,
      modelDigest: new Uint8Array(32),
      chunkTokens: CHUNK,
      maxPromptTokens: MAX_PROMPT,
      maxConcurrent: 2,
      threads: 1,
      flashAttention: false,
      kvType: 'f16',
      tokensPerSecond: null,
    });
  });
  afterAll(() => backend.close());
  beforeEach(() => {
    budget = new CountingBudget(1 << 30);
    decoder = randomUUID();
  });
  afterEach(() => {
    expect(backend.stats()).toEqual({ activePrefills: 0, reservedTokens: 0, unreleasedChunks: 0 });
    expect(budget.usedBytes).toBe(0);
  });

  /** Runs a prefill; its rows, how many tokens were not computed, and the ranges of its chunks. */
  async function prefill(tokens: Uint32Array, { heldTokens = 0, scope = decoder, leaveAfter = Infinity }: Wish = {}) {
    const { geometry } = backend.model;
    const stop = new AbortController();
    const task: PrefillTask = {
      tokens,
      heldTokens,
      chunkTokens: 0,
      wireType: 'f16',
      cacheScope: scope,
      staging: budget,
      signal: stop.signal,
    };
    const rows = new Rows(geometry, 'f16', tokens.length - 1);
    const run = backend.prefill(task);
    const ends: number[] = [];
    let next = heldTokens;
    try {
      for await (const chunk of run) {
        const { start, end, windowStart } = chunk;
        expect(start).toBe(next);
        next = end;
        ends.push(end);
        const range = { geometry, wireType: 'f16', chunkStart: start, chunkEnd: end, windowStart } as const;
        for (const plan of planChunkShards(range, MAX_PAYLOAD_BYTES)) {
          const payload = new Uint8Array(plan.payloadBytes);
          await chunk.readShard(plan, payload);
          rows.putShard(plan, payload);
        }
        if (ends.length >= leaveAfter) stop.abort(new MuserError('CANCELLED', 'the link broke'));
        chunk.release();
      }
      expect(next).toBe(tokens.length - 1);
    } catch (error) {
      if (!stop.signal.aborted) throw error;
    }
    await run.computed;
    return { rows, ends, reusedTokens: run.timings.reusedTokens };
  }

  const known = new Map<string, Promise<Rows>>();
  function right(tokens: Uint32Array): Promise<Rows> {
    const options = { chunkTokens: CHUNK, engineChunkTokens: CHUNK, flashAttention: false };
    const rows = known.get(tokens.join()) ?? directRows(tokens, options);
    known.set(tokens.join(), rows);
    return rows;
  }

  /**
   * What differs from rows that were computed elsewhere, of those that a reader with so many rows has to get. The cache is
   * shared by all tests here, so sums are rounded in another order.
   */
  function difference(rows: Rows, expected: Rows, tokens: Uint32Array, heldTokens = 0): string | null {
    const lastWindow = Math.max(heldTokens, tokens.length - 1 - backend.model.geometry.windowTokens);
    return rows.differenceBeyond(expected, 0.05, lastWindow);
  }

  // promise: A producer whose reader's link broke does not compute again what it had computed: the next request goes on there.
  it.each([0, 100, 640])('is computed from where the reader left it; %i rows are held', async (heldTokens) => {
    const tokens = prompt(700);
    // Room for one chunk, so that the last one is not handed out before the reader leaves, however slowly it reads.
    budget = new CountingBudget(chunkBytesOf(backend.model.geometry, CHUNK));
    const { ends, rows } = await prefill(tokens, { leaveAfter: 10 });
    expect(ends.at(-1)).toBe(10 * CHUNK);
    const again = await prefill(tokens, { heldTokens });
    expect(again.reusedTokens).toBeGreaterThanOrEqual(10 * CHUNK);
    expect(again.rows.firstGlobalDifference(rows, 10 * CHUNK, heldTokens)).toBeNull();
    expect(difference(again.rows, await right(tokens), tokens, heldTokens)).toBeNull();
  });

  it.each([0, 300, 698])(
    'is sent without being computed when all of it is there; %i rows are held',
    async (heldTokens) => {
      const tokens = prompt(700);
      const { rows } = await prefill(tokens);
      const again = await prefill(tokens, { heldTokens });
      expect(again.reusedTokens).toBe(699);
      expect(again.rows.firstGlobalDifference(rows, 699, heldTokens)).toBeNull();
      expect(difference(again.rows, await right(tokens), tokens, heldTokens)).toBeNull();
    },
  );

  it.each([3, 100, 400])('of %i tokens and goes on is computed from there', async (length) => {
    const beginning = prompt(length);
    const tokens = joined(beginning, prompt(300, 2));
    await prefill(beginning);
    const { rows, reusedTokens } = await prefill(tokens);
    expect(reusedTokens).toBe(length - 1);
    expect(difference(rows, await right(tokens), tokens)).toBeNull();
  });

  it('is not mixed up with one that differs in a single token', async () => {
    const tokens = prompt(200);
    for (const changed of [0, 100, 198]) {
      const other = Uint32Array.from(tokens);
      other[changed] = (tokens[changed] ?? 0) === 1000 ? 1001 : 1000;
      await prefill(other, { scope: `${decoder} ${changed}` });
      const { rows, reusedTokens } = await prefill(tokens, { scope: `${decoder} ${changed}` });
      expect(reusedTokens).toBeLessThanOrEqual(changed);
      expect(difference(rows, await right(tokens), tokens)).toBeNull();
    }
  });

  it('gets nothing of another scope', async () => {
    await prefill(prompt(300), { scope: 'one' });
    expect((await prefill(prompt(300), { scope: 'other' })).reusedTokens).toBe(0);
  });

  it('gives room to prompts that need it, as many as may run at once', async () => {
    for (const seed of [1, 2]) await prefill(prompt(MAX_PROMPT, seed), { leaveAfter: 2 });
    const runs = await Promise.all([3, 4].map((seed) => prefill(prompt(MAX_PROMPT, seed), { leaveAfter: 2 })));
    expect(runs.map(({ reusedTokens }) => reusedTokens)).toEqual([0, 0]);
    expect((await prefill(prompt(MAX_PROMPT, 1), { leaveAfter: 1 })).reusedTokens).toBe(0);
  });

  it('has the right rows in whatever order prompts come, are left and come again', async () => {
    const seed = 20_261_202;
    const random = new Random(seed);
    const prompts = [prompt(600, 1), joined(prompt(500, 1), prompt(150, 2)), prompt(130, 3)];
    const expected = await Promise.all(prompts.map(right));
    let reused = 0;
    const one = async (): Promise<void> => {
      const index = random.integer(0, prompts.length - 1);
      const tokens = prompts[index] as Uint32Array;
      const heldTokens = random.next() < 0.5 ? 0 : random.integer(0, tokens.length - 2);
      const leaveAfter = random.next() < 0.4 ? random.integer(1, 10) : Infinity;
      const { rows, ends, reusedTokens } = await prefill(tokens, { heldTokens, leaveAfter });
      reused += reusedTokens;
      if (ends.at(-1) !== tokens.length - 1) return;
      expect(difference(rows, expected[index] as Rows, tokens, heldTokens), `seed ${seed}`).toBeNull();
    };
    for (let round = 0; round < 7; round += 1) {
      await Promise.all(Array.from({ length: random.integer(1, 2) }, one));
    }
    expect(reused).toBeGreaterThan(1000);
  });
});

describe('KeptPrompts', () => {
  let model: Model;
  let engine: Engine;
  beforeAll(async () => {
    model = await loadModel(MUSE_NANO);
    const options = { maxSequences: 2, contextTokens: 1024, chunkTokens: CHUNK, flashAttention: false } as const;
    engine = await Engine.create(model, { ...options, kvType: 'f16', threads: 1 });
  });
  afterAll(async () => {
    await engine.close();
    model.close();
  });
  afterEach(() => vi.useRealTimers());

  const fits = (): Promise<boolean> => Promise.resolve(true);
  async function leave(kept: KeptPrompts, tokens: Uint32Array): Promise<void> {
    const sequence = await kept.open('decoder', tokens, fits);
    await sequence.evaluate(tokens.subarray(sequence.position));
    await kept.keep('decoder', tokens, sequence);
  }

  it('frees what nobody asked for within its time', async () => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
    const kept = new KeptPrompts(engine);
    await leave(kept, prompt(100));
    vi.advanceTimersByTime(29_999);
    expect(kept).toMatchObject({ sequences: 1, tokens: 100 });
    expect(engine.stats()).toMatchObject({ sequences: 1, reservedTokens: 100 });
    vi.advanceTimersByTime(1);
    expect(kept).toMatchObject({ sequences: 0, tokens: 0 });
    await kept.close();
    expect(engine.stats()).toMatchObject({ sequences: 0, reservedTokens: 0 });
  });

  it('keeps nothing without rows, and nothing once it is closed', async () => {
    const kept = new KeptPrompts(engine);
    await kept.keep('decoder', prompt(100), await kept.open('decoder', prompt(100), fits));
    expect(kept.sequences).toBe(0);
    const late = await kept.open('decoder', prompt(50), fits);
    await late.evaluate(prompt(50));
    await kept.close();
    await kept.keep('decoder', prompt(50), late);
    expect(engine.stats()).toMatchObject({ sequences: 0, reservedTokens: 0 });
  });

  it('opens an empty sequence where a former one has not all that is needed', async () => {
    const kept = new KeptPrompts(engine);
    await leave(kept, prompt(100));
    const sequence = await kept.open('decoder', prompt(100), () => Promise.resolve(false));
    expect(sequence.position).toBe(0);
    await sequence.dispose();
    await kept.close();
    expect(engine.stats()).toMatchObject({ sequences: 0, reservedTokens: 0 });
  });

  it('refuses more than there is room for when nothing can be freed', async () => {
    const kept = new KeptPrompts(engine);
    const [one, other] = await Promise.all([100, 200].map((length) => kept.open('decoder', prompt(length), fits)));
    await expect(kept.open('decoder', prompt(10), fits)).rejects.toMatchObject({ code: 'CONTEXT_FULL' });
    await Promise.all([one?.dispose(), other?.dispose()]);
    await kept.close();
  });
});
