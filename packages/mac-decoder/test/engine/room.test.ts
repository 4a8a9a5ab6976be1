// Admission and kept prefixes on real engines of tiny models: one with global layers alone, one with windows of 64 tokens too.
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Engine, loadModel, type Model } from '@muser/metal';
import { Random, TinyModel } from '@muser/testing';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { EngineRoom, type RoomOptions } from '../../src/engine/room.js';

const CHUNK = 32;
const CONTEXT = 512;
const VOCABULARY = 200;
const SEED = 20_261_201;
const ROUNDS = 30;
/** Most requests of one round. */
const AT_ONCE = 5;
const never = new AbortController().signal;

let folder: string;
const models = new Map<'llama' | 'gemma3', Model>();
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'muser-room-'));
  for (const architecture of ['llama', 'gemma3'] as const) {
    const path = join(folder, `${architecture}.gguf`);
    await writeFile(path, new TinyModel({ architecture }).gguf());
    models.set(architecture, await loadModel(path));
  }
});
afterAll(async () => {
  for (const model of models.values()) model.close();
  await rm(folder, { recursive: true });
});

const NOTHING = { sequences: 0, reservedTokens: 0, queueDepth: 0 };

/** A room in an engine of its own, and a second engine that computes what is right. */
class Bench {
  private constructor(
    readonly room: EngineRoom,
    readonly engine: Engine,
    private readonly reference: Engine,
  ) {}

  static async open(architecture: 'llama' | 'gemma3', options: Partial<RoomOptions> = {}): Promise<Bench> {
    const model = models.get(architecture) as Model;
    const maxSequences = options.maxSequences ?? 3;
    const create = (sequences: number, contextTokens: number): Promise<Engine> =>
      Engine.create(model, {
        maxSequences: sequences,
        contextTokens,
        chunkTokens: CHUNK,
        flashAttention: false,
        kvType: 'f16',
        threads: 1,
      });
    const engine = await create(maxSequences, CONTEXT);
    const limits = { contextTokens: CONTEXT, keptTokens: CONTEXT, queueLimit: 0, queueDeadlineMs: 60_000 };
    return new Bench(
      new EngineRoom({ ...limits, ...options, maxSequences, engine }),
      engine,
      await create(AT_ONCE, AT_ONCE * CONTEXT),
    );
  }

  /** A request that evaluates `evaluate` tokens of its prompt; how many were there already, and whether all is right. */
  async request(
    prompt: Uint32Array,
    { evaluate = prompt.length, keep = true, reserve = prompt.length + 8 } = {},
  ): Promise<number> {
    const lease = await this.room.admit({ prompt, reserveTokens: reserve }, never);
    const held = lease.sequence.position;
    if (evaluate > held) {
      await lease.sequence.evaluate(prompt.subarray(held, evaluate));
      expect(await this.difference(prompt.subarray(0, evaluate), lease.sequence.lastLogits())).toBeLessThan(0.01);
    }
    await lease.release(keep);
    return held;
  }

  /** Greatest difference from the logits of a sequence that never held anything else. */
  async difference(tokens: Uint32Array, logits: Float32Array): Promise<number> {
    const sequence = this.reference.open(tokens.length);
    await sequence.evaluate(tokens);
    const expected = sequence.lastLogits();
    await sequence.dispose();
    return logits.reduce((greatest, value, i) => Math.max(greatest, Math.abs(value - (expected[i] ?? NaN))), 0);
  }

  async close(): Promise<void> {
    await this.room.close();
    expect(this.engine.stats()).toMatchObject(NOTHING);
    await this.engine.close();
    await this.reference.close();
  }
}

const prompt = (length: number, seed = 1): Uint32Array => {
  const random = new Random(seed);
  return Uint32Array.from({ length }, () => random.integer(10, VOCABULARY));
};
const joined = (...parts: Uint32Array[]): Uint32Array => Uint32Array.from(parts.flatMap((part) => [...part]));

describe.each(['llama', 'gemma3'] as const)('%s', (architecture) => {
  async function withBench(options: Partial<RoomOptions>, work: (bench: Bench) => Promise<void>): Promise<void> {
    const bench = await Bench.open(architecture, options);
    await work(bench);
    await bench.close();
  }

  // promise: A request that was cancelled part-way leaves what is prefilled: the same prompt goes on from there.
  test.each([32, 96, 100, 199])('a prompt goes on from %i tokens that an earlier request evaluated', (evaluated) =>
    withBench({}, async (bench) => {
      expect(await bench.request(prompt(200), { evaluate: evaluated })).toBe(0);
      expect(bench.room.load()).toMatchObject({ active: 0, kept: { sequences: 1, tokens: evaluated } });
      // In no more cells than the rows need.
      expect(bench.engine.stats()).toMatchObject({ sequences: 1, reservedTokens: evaluated });
      expect(await bench.request(prompt(200), { reserve: 400 })).toBe(evaluated);
      expect(await bench.request(prompt(200))).toBe(199);
    }),
  );

  test('a prompt goes on from an earlier one that it begins with', () =>
    withBench({}, async (bench) => {
      const [question, answer] = [prompt(150), prompt(40, 2)];
      await bench.request(question);
      expect(await bench.request(joined(question, answer))).toBe(149);
    }));

  test('nothing is kept when nothing may be, or where it was not asked for', async () => {
    await withBench({ keptTokens: 0 }, async (bench) => {
      await bench.request(prompt(100));
      expect(bench.room.load().kept).toEqual({ sequences: 0, tokens: 0, limitTokens: 0 });
      expect(await bench.request(prompt(100))).toBe(0);
    });
    await withBench({}, async (bench) => {
      await bench.request(prompt(100), { keep: false });
      expect(await bench.request(prompt(100), { keep: false })).toBe(0);
      expect(bench.engine.stats()).toMatchObject(NOTHING);
    });
  });

  test('rows are of the same producers for the next request, as far as it takes them over; those of one can be dropped', () =>
    withBench({}, async (bench) => {
      const lease = await bench.room.admit({ prompt: prompt(100), reserveTokens: 110 }, never);
      await lease.sequence.evaluate(prompt(100).subarray(0, 60));
      lease.origins.received('first', 10, 20);
      lease.origins.received('second', 20, 40);
      lease.origins.received('third', 40, 60);
      await lease.release(true);
      await bench.request(prompt(100, 2));

      const short = joined(prompt(100).subarray(0, 40), prompt(20, 3));
      const next = await bench.room.admit({ prompt: short, reserveTokens: 70 }, never);
      expect([next.sequence.position, next.origins.producerIds]).toEqual([40, ['first', 'second']]);
      expect(await next.rewind(20)).toBe(20);
      expect(next.origins.producerIds).toEqual(['first']);
      await next.release(true);

      bench.room.dropRowsOf(['second', 'third']);
      expect(bench.room.load().kept.sequences).toBe(2);
      bench.room.dropRowsOf(['first']);
      expect(bench.room.load().kept).toMatchObject({ sequences: 1, tokens: 99 });
      expect(await bench.request(prompt(100))).toBe(0);
    }));

  // promise: Running requests always win: what is kept goes as soon as one needs its cells or its place.
  test('gives cells to whoever needs them, at once and without a line', () =>
    withBench({}, async (bench) => {
      await bench.request(prompt(200, 1));
      await bench.request(prompt(200, 2));
      expect(bench.room.load().kept).toMatchObject({ sequences: 2, tokens: 398 });
      await bench.request(prompt(200, 3), { reserve: 300 });
      // The oldest has gone.
      expect(await bench.request(prompt(200, 2), { evaluate: 199 })).toBe(199);
      expect(await bench.request(prompt(200, 1), { reserve: CONTEXT, evaluate: 10, keep: false })).toBe(0);
      expect(bench.room.load().kept).toMatchObject({ sequences: 0, tokens: 0 });
    }));

  test.each([1, 2, 3])('gives sequences to whoever needs them (%i of them)', (maxSequences) =>
    withBench({ maxSequences }, async (bench) => {
      for (let seed = 1; seed <= 4; seed += 1) await bench.request(prompt(40, seed));
      // One stays free while something runs.
      expect(bench.room.load().kept.sequences).toBe(Math.max(1, maxSequences - 1));
      const wanted = Array.from({ length: maxSequences }, (_, i) => ({
        prompt: prompt(60, 10 + i),
        reserveTokens: 80,
      }));
      const leases = await Promise.all(wanted.map((want) => bench.room.admit(want, never)));
      expect(bench.room.load()).toMatchObject({ active: maxSequences, kept: { sequences: 0 } });
      await expect(bench.room.admit({ prompt: prompt(9), reserveTokens: 9 }, never)).rejects.toMatchObject({
        code: 'QUEUE_FULL',
      });
      await Promise.all(leases.map((lease) => lease.release()));
    }),
  );

  test('a sequence that was replaced has its room again, whatever is kept', () =>
    withBench({ maxSequences: 2 }, async (bench) => {
      const lease = await bench.room.admit({ prompt: prompt(100), reserveTokens: 300 }, never);
      await lease.sequence.evaluate(prompt(100));
      await bench.request(prompt(180, 2), { evaluate: 170 });
      await lease.replace();
      expect(lease.sequence.position).toBe(0);
      await lease.sequence.evaluate(prompt(290, 3));
      await lease.release();
    }));

  test('refuses what will never fit, and everybody once it is closed', async () => {
    const bench = await Bench.open(architecture);
    await expect(bench.room.admit({ prompt: prompt(9), reserveTokens: CONTEXT + 1 }, never)).rejects.toMatchObject({
      code: 'CONTEXT_FULL',
    });
    const lease = await bench.room.admit({ prompt: prompt(50), reserveTokens: 60 }, never);
    await lease.sequence.evaluate(prompt(50));
    await bench.room.close();
    await expect(bench.room.admit({ prompt: prompt(9), reserveTokens: 9 }, never)).rejects.toMatchObject({
      code: 'UNAVAILABLE',
    });
    await lease.release(true);
    await bench.close();
  });

  // fault: mixed-cache-entries
  test('requests in random order get right rows, and leave no cell behind', () =>
    withBench({ queueLimit: 100 }, async (bench) => {
      const random = new Random(SEED);
      const stems = [1, 2, 3].map((seed) => prompt(120, seed));
      let reused = 0;
      const one = async (): Promise<void> => {
        const stem = random.pick(stems).subarray(0, random.integer(1, 120));
        const whole = joined(stem, prompt(random.integer(1, 60), random.integer(1, 4)));
        const evaluate = random.integer(1, whole.length);
        const held = await bench.request(whole, { evaluate, keep: random.next() < 0.8 });
        if (held > 0) reused += 1;
      };
      for (let round = 0; round < ROUNDS; round += 1) {
        await Promise.all(Array.from({ length: random.integer(1, AT_ONCE) }, one));
        const { active, kept } = bench.room.load();
        expect(active).toBe(0);
        expect(kept.tokens, `seed ${SEED}`).toBeLessThanOrEqual(CONTEXT);
        // What has to go is on its way out.
        const occupied = { sequences: kept.sequences, reservedTokens: kept.tokens };
        await expect.poll(() => bench.engine.stats(), { message: `seed ${SEED}` }).toMatchObject(occupied);
      }
      expect(reused).toBeGreaterThan(ROUNDS / 4);
    }));
});
