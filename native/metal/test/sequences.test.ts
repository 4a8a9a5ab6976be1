import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Engine, type Model, type Sequence } from '../ts/index.js';
import {
  codeOf,
  ENGINE,
  exportChunk,
  generate,
  greatestDifference,
  GREEDY,
  installChunk,
  nano,
  needlePrompt,
  textTokens,
} from './support.js';

const SEQUENCES = 4;
let model: Model;
let engine: Engine;
beforeAll(async () => {
  model = await nano();
  engine = await Engine.create(model, {
    ...ENGINE,
    maxSequences: SEQUENCES,
    contextTokens: 12_288,
    chunkTokens: 256,
    flashAttention: true,
  });
});
afterAll(() => engine.close());

const opened: Sequence[] = [];
function open(reserve: number): Sequence {
  const sequence = engine.open(reserve);
  opened.push(sequence);
  return sequence;
}

/** Frees what a test opened; nothing may be left behind. */
async function cleanUp(): Promise<void> {
  await Promise.all(opened.splice(0).map((sequence) => sequence.dispose()));
  expect(engine.stats()).toMatchObject({ sequences: 0, reservedTokens: 0, queueDepth: 0 });
}

/** Logits after the last of these tokens, by a sequence that never held anything else. */
async function freshLogits(tokens: Int32Array): Promise<Float32Array> {
  const fresh = open(tokens.length);
  await fresh.evaluate(tokens);
  const logits = fresh.lastLogits();
  await fresh.dispose();
  return logits;
}

describe('admission', () => {
  it('counts sequences and cells, with the numbers in the error', async () => {
    for (let i = 0; i < SEQUENCES; i++) open(100);
    expect(() => engine.open(1)).toThrow(/all 4 sequences/);
    expect(await codeOf(() => engine.open(1))).toBe('CONTEXT_FULL');
    await opened.pop()?.dispose();
    expect(() => engine.open(12_000)).toThrow(/12000 tokens wanted.*11988 of 12288 are free/);
    open(11_988);
    await cleanUp();
  });

  it('says what a sequence takes', () => {
    const row = 2 * 64 * 2 * 2;
    expect(engine.sequenceBytes(100)).toBe(8 * 100 * row);
    expect(engine.sequenceBytes(2000)).toBe((2 * 2000 + 6 * 512) * row);
    expect(engine.stats().kvBytes).toBeGreaterThan(engine.sequenceBytes(12_288));
  });
});

describe('reserving anew', () => {
  it('counts cells, in the order of the calls, and changes nothing when they are not there', async () => {
    const tokens = await textTokens(600, 2);
    const [first, second] = [open(700), open(100)];
    await Promise.all([first.evaluate(tokens), first.reserve(600)]);
    expect(engine.stats().reservedTokens).toBe(700);
    await expect(second.reserve(11_689)).rejects.toThrow(/11689 tokens wanted.*11688 of 12288 are free/);
    expect(await codeOf(() => second.reserve(11_689))).toBe('CONTEXT_FULL');
    expect(await codeOf(() => first.reserve(599))).toBe('RANGE_VIOLATION');
    expect(engine.stats().reservedTokens).toBe(700);
    await second.reserve(11_688);
    expect(await codeOf(() => engine.open(1))).toBe('CONTEXT_FULL');
    await second.dispose();
    await first.reserve(12_288);
    expect(engine.stats().reservedTokens).toBe(12_288);
    await cleanUp();
  });

  it('binds what is evaluated from then on', async () => {
    const tokens = await textTokens(800, 2);
    const sequence = open(500);
    expect(await codeOf(() => sequence.evaluate(tokens))).toBe('CONTEXT_FULL');
    await sequence.reserve(800);
    await sequence.evaluate(tokens);
    expect(sequence.position).toBe(800);
    await sequence.reserve(800);
    expect(await codeOf(() => sequence.evaluate(tokens.subarray(0, 1)))).toBe('CONTEXT_FULL');
    await sequence.dispose();
    expect(await codeOf(() => sequence.reserve(900))).toBe('SEQUENCE_STATE');
    await cleanUp();
  });
});

describe('several sequences', () => {
  it('advances running answers between the chunks of a long prefill', async () => {
    const prompt = await textTokens(4096, 8);
    const answering = open(1500);
    const prefilling = open(4100);
    const seen: ('token' | 'chunk')[] = [];
    const answer = answering.generate(
      { ...GREEDY, prompt: prompt.subarray(0, 10), maxTokens: 60, stopTokens: [] },
      ({ tokens }) => tokens.forEach(() => seen.push('token')),
    );
    const prefill = prefilling.evaluate(prompt, { onProgress: () => seen.push('chunk') });
    await Promise.all([answer, prefill]);
    // 16 chunks: between the first and the last of them a token of the answer came each time, or two chunks' news were joined.
    const during = seen.slice(seen.indexOf('chunk'), seen.lastIndexOf('chunk'));
    const tokens = during.filter((event) => event === 'token').length;
    expect(tokens).toBeGreaterThanOrEqual(14);
    await cleanUp();
  });

  it('lets prefilling sequences take turns', async () => {
    const prompt = await textTokens(2048, 9);
    const first = open(2048);
    const second = open(2048);
    const order: number[] = [];
    await Promise.all([
      first.evaluate(prompt, { onProgress: () => order.push(1) }),
      second.evaluate(prompt, { onProgress: () => order.push(2) }),
    ]);
    // The second is done before long after the first, not after all of it.
    expect(order.indexOf(2)).toBeLessThan(order.lastIndexOf(1));
    await cleanUp();
  });

  it('answers four questions at once, each rightly', async () => {
    const needles = await Promise.all([300, 800, 1500, 2500].map((size, i) => needlePrompt(40 + i, size)));
    const answers = await Promise.all(
      needles.map(({ tokens }) => generate(open(tokens.length + 64), { prompt: tokens })),
    );
    expect(answers.map(({ text }) => text)).toEqual(needles.map(({ answer }) => answer));
    await cleanUp();
  });

  it('runs the operations of one sequence in the order of the calls', async () => {
    const tokens = await textTokens(600, 2);
    const sequence = open(700);
    const ended: string[] = [];
    await Promise.all([
      sequence.evaluate(tokens.subarray(0, 300)).then(() => ended.push('first')),
      sequence.exportRange(0, 300, { windowStart: 0 }).then((view) => {
        ended.push('export');
        view.dispose();
      }),
      sequence.evaluate(tokens.subarray(300)).then(() => ended.push('second')),
    ]);
    expect(ended).toEqual(['first', 'export', 'second']);
    expect(greatestDifference(sequence.lastLogits(), await freshLogits(tokens))).toBeLessThan(1);
    await cleanUp();
  });
});

describe('cancelling', () => {
  it('ends at any point, and the engine answers rightly afterwards', async () => {
    const { tokens, answer } = await needlePrompt(11, 1200);
    for (const events of [0, 1, 2, 4, 5, 6, 9, 14]) {
      const sequence = open(tokens.length + 64);
      const controller = new AbortController();
      let seen = 0;
      const count = (): void => {
        if (++seen >= events) controller.abort();
      };
      if (events === 0) queueMicrotask(() => controller.abort());
      const outcome = sequence.generate(
        {
          ...GREEDY,
          prompt: tokens,
          maxTokens: 60,
          stopTokens: [],
          signal: controller.signal,
          onPrefillProgress: count,
        },
        count,
      );
      await expect(outcome).rejects.toMatchObject({ name: 'EngineError', code: 'CANCELLED' });
      // What was evaluated stays, and the sequence goes on from there.
      const position = sequence.position;
      if (position < tokens.length) {
        expect((await generate(sequence, { prompt: tokens.subarray(position) })).text).toBe(answer);
      }
      await sequence.dispose();
    }
    const again = await generate(open(tokens.length + 64), { prompt: tokens });
    expect(again.text).toBe(answer);
    await cleanUp();
  });

  it('is refused at once when it was aborted before', async () => {
    const sequence = open(10);
    expect(await codeOf(() => sequence.evaluate(Int32Array.of(1), { signal: AbortSignal.abort() }))).toBe('CANCELLED');
    expect(sequence.position).toBe(0);
    await cleanUp();
  });

  it('disposing ends what runs and what waits', async () => {
    const tokens = await textTokens(4000, 3);
    const sequence = open(4100);
    const outcomes = Promise.allSettled([sequence.evaluate(tokens), sequence.packWindow(), sequence.truncate(0)]);
    await sequence.dispose();
    await sequence.dispose();
    for (const outcome of await outcomes) {
      expect(outcome).toMatchObject({ status: 'rejected', reason: { code: 'CANCELLED' } });
    }
    expect(await codeOf(() => sequence.evaluate(tokens))).toBe('SEQUENCE_STATE');
    expect(await codeOf(() => sequence.lastLogits())).toBe('SEQUENCE_STATE');
    await cleanUp();
  });
});

describe('forks', () => {
  it('go their own ways, again and again, past the window', async () => {
    const tokens = await textTokens(3000, 6);
    const base = open(3000);
    const forks: Sequence[] = [];
    for (const at of [700, 1400]) {
      await base.evaluate(tokens.subarray(base.position, at));
      const fork = await base.fork(3000);
      opened.push(fork);
      forks.push(fork);
      expect(fork.position).toBe(at);
    }
    await base.evaluate(tokens.subarray(base.position, 2600));
    for (const fork of forks) {
      await fork.evaluate(tokens.subarray(fork.position, 2200));
      expect(greatestDifference(fork.lastLogits(), await freshLogits(tokens.subarray(0, 2200)))).toBeLessThan(1);
    }
    await base.evaluate(tokens.subarray(base.position, 2900));
    expect(greatestDifference(base.lastLogits(), await freshLogits(tokens.subarray(0, 2900)))).toBeLessThan(1);
    await cleanUp();
  });

  it('are admitted like other sequences', async () => {
    const base = open(100);
    await base.evaluate(Int32Array.of(1, 2, 3));
    expect(await codeOf(() => base.fork(12_288))).toBe('CONTEXT_FULL');
    expect(await codeOf(() => base.fork(2))).toBe('CONTEXT_FULL');
    expect(engine.stats().sequences).toBe(1);
    await cleanUp();
  });
});

describe('truncating', () => {
  it('forgets the end, so that other tokens can follow', async () => {
    const tokens = await textTokens(900, 4);
    const other = await textTokens(200, 5);
    const sequence = open(2000);
    await sequence.evaluate(tokens.subarray(0, 400));
    await sequence.truncate(300);
    expect(sequence.position).toBe(300);
    expect(await codeOf(() => sequence.lastLogits())).toBe('SEQUENCE_STATE');
    await sequence.evaluate(other);
    const both = Int32Array.from([...tokens.subarray(0, 300), ...other]);
    expect(greatestDifference(sequence.lastLogits(), await freshLogits(both))).toBeLessThan(1);
    await sequence.truncate(0);
    await sequence.evaluate(tokens);
    expect(greatestDifference(sequence.lastLogits(), await freshLogits(tokens))).toBeLessThan(1);
    await cleanUp();
  });

  // fault: window-overwritten
  it('is refused where the window is gone, which llama.cpp would not notice', async () => {
    const tokens = await textTokens(6000, 4);
    const sequence = open(6000);
    await sequence.evaluate(tokens);
    expect(await codeOf(() => sequence.truncate(3000))).toBe('SEQUENCE_STATE');
    expect(await codeOf(() => sequence.truncate(6001))).toBe('RANGE_VIOLATION');
    expect(sequence.position).toBe(6000);
    await sequence.truncate(6000);
    await cleanUp();
  });

  it('to where it ends is refused when nobody can go on from there', async () => {
    const tokens = await textTokens(1024, 2);
    const source = open(1100);
    await source.evaluate(tokens);
    const target = open(1100);
    const chunk = await exportChunk(model, source, 0, 1024, 1024);
    await installChunk(target, chunk);
    expect(target.position).toBe(1024);
    expect(await codeOf(() => target.truncate(1024))).toBe('SEQUENCE_STATE');
    expect(target.position).toBe(1024);
    await cleanUp();
  });
});

describe('the ledger', () => {
  it('refuses exports of rows that are not there', async () => {
    const sequence = open(3000);
    const tokens = await textTokens(2000, 2);
    await sequence.evaluate(tokens);
    expect(await codeOf(() => sequence.exportRange(0, 2001, { windowStart: 2001 }))).toBe('RANGE_VIOLATION');
    expect(await codeOf(() => sequence.exportRange(100, 50, { windowStart: 50 }))).toBe('RANGE_VIOLATION');
    expect(await codeOf(() => sequence.exportRange(0, 512, { windowStart: 0 }))).toBe('RANGE_VIOLATION');
    (await sequence.exportRange(0, 512, { windowStart: 512 })).dispose();
    await cleanUp();
  });

  it('refuses installs that do not follow on, and rows that are there already', async () => {
    const source = open(1100);
    const tokens = await textTokens(1024, 2);
    await source.evaluate(tokens.subarray(0, 512));
    const chunk = await exportChunk(model, source, 0, 512);
    const target = open(600);
    const stage = target.stage(0, 512, 0);
    expect(await codeOf(() => target.install(stage))).toBe('SEQUENCE_STATE');
    for (const { layer, kind, tokenStart, tokenCount, bytes } of chunk.parts) {
      stage.put(layer, kind, tokenStart, tokenCount, 'f16', bytes);
      expect(await codeOf(() => stage.put(layer, kind, tokenStart, tokenCount, 'f16', bytes))).toBe('RANGE_VIOLATION');
    }
    expect(stage.complete).toBe(true);
    expect(await codeOf(() => source.install(stage))).toBe('SEQUENCE_STATE');
    await target.install(stage);
    expect(target.position).toBe(512);
    expect(await codeOf(() => target.install(stage))).toBe('SEQUENCE_STATE');
    expect(await codeOf(() => target.stage(512, 700, 512))).toBe('CONTEXT_FULL');
    await cleanUp();
  });

  it('refuses rows that are no numbers, outside, or of a wrong size', async () => {
    const target = open(600);
    const stage = target.stage(0, 64, 0);
    const rows = new Uint8Array(64 * 256);
    const bad = rows.slice();
    new DataView(bad.buffer).setUint16(500, 0x7e00, true);
    expect(await codeOf(() => stage.put(0, 'k', 0, 64, 'f16', bad))).toBe('VALUE_INVALID');
    expect(await codeOf(() => stage.put(8, 'k', 0, 64, 'f16', rows))).toBe('RANGE_VIOLATION');
    expect(await codeOf(() => stage.put(0, 'k', 1, 64, 'f16', rows))).toBe('RANGE_VIOLATION');
    expect(await codeOf(() => stage.put(0, 'k', 0, 64, 'f16', rows.subarray(1)))).toBe('RANGE_VIOLATION');
    stage.put(0, 'k', 0, 64, 'f16', rows);
    expect(stage.complete).toBe(false);
    stage.dispose();
    expect(await codeOf(() => stage.put(1, 'k', 0, 64, 'f16', rows))).toBe('SEQUENCE_STATE');
    await cleanUp();
  });

  // fault: partial-handoff
  it('does not decode when only global rows were installed', async () => {
    const source = open(600);
    await source.evaluate(await textTokens(512, 2));
    const chunk = await exportChunk(model, source, 0, 512, 512);
    const target = open(600);
    const stage = target.stage(0, 512, 512);
    for (const { layer, kind, tokenStart, tokenCount, bytes } of chunk.parts) {
      stage.put(layer, kind, tokenStart, tokenCount, 'f16', bytes);
    }
    await target.install(stage);
    expect(await codeOf(() => target.evaluate(Int32Array.of(1)))).toBe('SEQUENCE_STATE');
    await cleanUp();
  });
});

describe('packing the window', () => {
  it('changes nothing that can be seen', async () => {
    const tokens = await textTokens(1500, 7);
    const sequence = open(1600);
    await sequence.evaluate(tokens.subarray(0, 1400));
    await sequence.packWindow();
    expect(sequence.position).toBe(1400);
    await sequence.evaluate(tokens.subarray(1400));
    expect(greatestDifference(sequence.lastLogits(), await freshLogits(tokens))).toBeLessThan(1);
    await cleanUp();
  });
});
