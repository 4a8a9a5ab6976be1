import { beforeAll, describe, expect, it } from 'vitest';
import type { EngineOptions, Sequence } from '../ts/index.js';
import {
  exportChunk,
  generate,
  greatestDifference,
  installChunk,
  nano,
  needlePrompt,
  prefillAndExport,
  textTokens,
  withEngine,
  type ChunkRows,
} from './support.js';

const GREEDY_TOKENS = 32;

interface Continuation {
  logits: Float32Array;
  tokens: number[];
}

/** First-token logits after the last prompt token, and the greedy tokens from there on. */
async function continueFrom(sequence: Sequence, prompt: Int32Array): Promise<Continuation> {
  const first = await generate(sequence, { prompt, maxTokens: 1, stopTokens: [] });
  const logits = sequence.lastLogits();
  const rest = await generate(sequence, {
    prompt: Int32Array.from(first.tokens),
    maxTokens: GREEDY_TOKENS - 1,
    stopTokens: [],
  });
  return { logits, tokens: [...first.tokens, ...rest.tokens] };
}

interface Handed {
  local: Continuation;
  chunks: ChunkRows[];
}

/**
 * What a producer sends for a prompt, and how a local prefill of the same prompt goes on. It is one computation: a
 * prefill by chunks, each chunk exported right after it, then the last token.
 */
async function produce(options: Partial<EngineOptions>, prompts: Int32Array[]): Promise<Handed[]> {
  const model = await nano();
  const chunkTokens = options.chunkTokens ?? 512;
  return await withEngine(options, async (engine) => {
    const handed: Handed[] = [];
    for (const tokens of prompts) {
      const source = engine.open(tokens.length + GREEDY_TOKENS);
      const chunks = await prefillAndExport(model, source, tokens, tokens.length - 1, chunkTokens);
      handed.push({ local: await continueFrom(source, tokens.subarray(-1)), chunks });
      await source.dispose();
    }
    return handed;
  });
}

async function receive(options: Partial<EngineOptions>, prompt: Int32Array, chunks: ChunkRows[]) {
  return await withEngine(options, async (engine) => {
    const target = engine.open(prompt.length + GREEDY_TOKENS);
    for (const chunk of chunks) await installChunk(target, chunk);
    expect(target.position).toBe(prompt.length - 1);
    return await continueFrom(target, prompt.subarray(-1));
  });
}

/** Prompts of 8,000 tokens are in test/cpp/kv/handoff_test.cpp, of 16,000 in the producer's llama-transfers test. */
const CASES: { chunkTokens: number; lengths: number[] }[] = [
  { chunkTokens: 512, lengths: [2, 3, 511, 512, 513, 2049] },
  { chunkTokens: 2048, lengths: [2, 3, 511, 512, 513, 2049] },
  { chunkTokens: 7, lengths: [2, 3, 511, 512, 513, 2049] },
  { chunkTokens: 1, lengths: [2, 3, 511, 700] },
];

// Long on a machine that is busy with other things.
describe('hand-off equals local prefill', { timeout: 600_000 }, () => {
  it('a prefill by chunks is what generate does with the whole prompt', async () => {
    const options = { contextTokens: 4096 };
    const prompt = await textTokens(1300, 4);
    const [handed] = await produce(options, [prompt]);
    await withEngine(options, async (engine) => {
      const whole = await continueFrom(engine.open(prompt.length + GREEDY_TOKENS), prompt);
      expect(greatestDifference(whole.logits, handed?.local.logits ?? whole.logits)).toBe(0);
      expect(handed?.local.tokens).toEqual(whole.tokens);
    });
  });

  // fault: last-token-guessed
  it.each(CASES)('flash attention off, chunks of $chunkTokens', async ({ chunkTokens, lengths }) => {
    const options = { chunkTokens, contextTokens: Math.max(...lengths) + GREEDY_TOKENS };
    const prompts = await Promise.all(lengths.map((length) => textTokens(length, length)));
    const handed = await produce(options, prompts);
    for (const [i, prompt] of prompts.entries()) {
      const { local, chunks } = handed[i] ?? expect.fail('no hand-off');
      const remote = await receive(options, prompt, chunks);
      expect(greatestDifference(local.logits, remote.logits), `${prompt.length} tokens`).toBeLessThan(0.01);
      expect(remote.tokens, `${prompt.length} tokens`).toEqual(local.tokens);
    }
  });

  it.each([
    { flashAttention: true, kvType: 'f16' as const, lengths: [3, 513, 2049] },
    { flashAttention: true, kvType: 'q8_0' as const, lengths: [3, 513, 2049] },
  ])(
    'with flash attention and a $kvType cache: the same first token, logits within 1',
    async ({ lengths, ...form }) => {
      const options = { ...form, chunkTokens: 512, contextTokens: Math.max(...lengths) + GREEDY_TOKENS };
      const prompts = await Promise.all(lengths.map((length) => textTokens(length, length)));
      const handed = await produce(options, prompts);
      for (const [i, prompt] of prompts.entries()) {
        const { local, chunks } = handed[i] ?? expect.fail('no hand-off');
        const remote = await receive(options, prompt, chunks);
        expect(remote.tokens[0], `${prompt.length} tokens`).toBe(local.tokens[0]);
        expect(greatestDifference(local.logits, remote.logits), `${prompt.length} tokens`).toBeLessThan(1);
      }
    },
  );

  it('finds the needles when four sequences are received at once, from chunks of another size', async () => {
    const model = await nano();
    const needles = await Promise.all([700, 1500, 2600, 900].map((size, i) => needlePrompt(20 + i, size)));
    const sent = await withEngine({ chunkTokens: 2048, maxSequences: 4, contextTokens: 16_384 }, async (engine) =>
      Promise.all(
        needles.map(({ tokens }) =>
          prefillAndExport(model, engine.open(tokens.length), tokens, tokens.length - 1, 2048),
        ),
      ),
    );
    await withEngine({ chunkTokens: 512, maxSequences: 4, contextTokens: 16_384 }, async (engine) => {
      const answers = await Promise.all(
        needles.map(async ({ tokens }, i) => {
          const target = engine.open(tokens.length + 64);
          for (const chunk of sent[i] ?? []) await installChunk(target, chunk);
          return await generate(target, { prompt: tokens.subarray(-1) });
        }),
      );
      expect(answers.map(({ text }) => text)).toEqual(needles.map(({ answer }) => answer));
    });
  });

  it('goes on by local prefill from an installed chunk border', async () => {
    const options = { contextTokens: 4096 };
    const prompt = await textTokens(2049, 3);
    const [handed] = await produce(options, [prompt]);
    const { local, chunks } = handed ?? expect.fail('no hand-off');
    await withEngine(options, async (engine) => {
      const target = engine.open(prompt.length + GREEDY_TOKENS);
      for (const chunk of chunks.slice(0, 2)) await installChunk(target, chunk);
      const resumed = await continueFrom(target, prompt.subarray(1024));
      expect(greatestDifference(local.logits, resumed.logits)).toBeLessThan(0.01);
      expect(resumed.tokens).toEqual(local.tokens);
    });
  });
});

describe('a damaged hand-off is noticed', { timeout: 300_000 }, () => {
  const LENGTH = 1537;
  const options = { contextTokens: 2048 };

  let prompt: Int32Array;
  let handed: Handed;
  beforeAll(async () => {
    prompt = await textTokens(LENGTH, 5);
    const [only] = await produce(options, [prompt]);
    handed = only ?? expect.fail('no hand-off');
  });

  async function differenceAfter(damage: (chunks: ChunkRows[]) => void): Promise<number> {
    const { local } = handed;
    const chunks = structuredClone(handed.chunks);
    damage(chunks);
    const remote = await receive(options, prompt, chunks);
    return greatestDifference(local.logits, remote.logits);
  }

  it('agrees when nothing is damaged', async () => {
    expect(await differenceAfter(() => undefined)).toBeLessThan(0.01);
  });

  // fault: silent-wrong-rows
  it('differs when K keeps the order of the other side', async () => {
    const difference = await differenceAfter((chunks) => {
      for (const part of chunks.flatMap((chunk) => chunk.parts)) {
        if (part.kind === 'k') part.bytes = interleaved(part.bytes, 64);
      }
    });
    expect(difference).toBeGreaterThan(1);
  });

  it('differs when K and V are swapped', async () => {
    const difference = await differenceAfter((chunks) => {
      for (const part of chunks.flatMap((chunk) => chunk.parts)) part.kind = part.kind === 'k' ? 'v' : 'k';
    });
    expect(difference).toBeGreaterThan(1);
  });

  it('differs when one window row is empty', async () => {
    const difference = await differenceAfter((chunks) => {
      for (const part of chunks.at(-1)?.parts ?? []) if (part.layer % 4 !== 3) part.bytes.fill(0, 256, 512);
    });
    expect(difference).toBeGreaterThan(0.01);
  });

  // fault: damaged-restore
  it('refuses a chunk with a window row missing, and one after a dropped chunk, and stays usable', async () => {
    const model = await nano();
    const { local, chunks } = handed;
    await withEngine(options, async (engine) => {
      const target = engine.open(LENGTH + GREEDY_TOKENS);
      const [first, second, third] = chunks;
      if (first === undefined || second === undefined || third === undefined) return expect.fail('too few chunks');
      await installChunk(target, first);
      await expect(installChunk(target, third)).rejects.toMatchObject({ code: 'SEQUENCE_STATE' });
      const lacking = { ...second, parts: second.parts.map((part) => ({ ...part })) };
      const window = lacking.parts.find((part) => part.layer === 0) ?? expect.fail('no window part');
      window.tokenCount -= 1;
      window.bytes = window.bytes.subarray(0, window.tokenCount * 256);
      await expect(installChunk(target, lacking)).rejects.toMatchObject({ code: 'SEQUENCE_STATE' });
      expect(target.position).toBe(512);
      for (const chunk of [second, third]) await installChunk(target, chunk);
      const remote = await continueFrom(target, prompt.subarray(-1));
      expect(remote.tokens).toEqual(local.tokens);
      // What was installed can be handed on.
      const again = await exportChunk(model, target, 0, 512, 512);
      const before = first.parts.filter(({ layer }) => layer % 4 === 3);
      expect(again.parts.map(({ bytes }) => Buffer.from(bytes).toString('hex'))).toEqual(
        before.map(({ bytes }) => Buffer.from(bytes).toString('hex')),
      );
    });
  });
});

/** The permutation from half-split to interleaved order, applied where it must not be. */
function interleaved(rows: Uint8Array, headDimension: number): Uint8Array {
  const from = new Uint16Array(rows.buffer, rows.byteOffset, rows.length / 2);
  const to = new Uint16Array(from.length);
  const half = headDimension / 2;
  for (let head = 0; head < from.length; head += headDimension) {
    for (let j = 0; j < half; j++) {
      to[head + 2 * j] = from[head + j] ?? 0;
      to[head + 2 * j + 1] = from[head + half + j] ?? 0;
    }
  }
  return new Uint8Array(to.buffer);
}
