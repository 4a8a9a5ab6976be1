import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Engine, type GenerateOptions, type Model, type Sequence } from '../ts/index.js';
import {
  chatPrompt,
  codeOf,
  ENGINE,
  generate,
  GREEDY,
  nano,
  needlePrompt,
  textTokens,
  type Answer,
} from './support.js';

let model: Model;
let engine: Engine;
beforeAll(async () => {
  model = await nano();
  engine = await Engine.create(model, { ...ENGINE, maxSequences: 2, contextTokens: 8192 });
});
afterAll(() => engine.close());

async function withSequence<T>(reserve: number, work: (sequence: Sequence) => Promise<T>): Promise<T> {
  const sequence = engine.open(reserve);
  try {
    return await work(sequence);
  } finally {
    await sequence.dispose();
  }
}

function answer(text: string, options: Partial<GenerateOptions> = {}): Promise<Answer> {
  const prompt = model.tokenize(text, { special: true });
  return withSequence(prompt.length + 300, (sequence) => generate(sequence, { prompt, ...options }));
}

describe('answers', () => {
  it.each([300, 1000, 2000, 4000])('finds the needle in a document of %i tokens', async (size) => {
    const needle = await needlePrompt(size, size);
    const { text, result } = await withSequence(needle.tokens.length + 64, (sequence) =>
      generate(sequence, { prompt: needle.tokens }),
    );
    expect(text).toBe(needle.answer);
    expect(result.reason).toBe('stop');
    expect(result.promptTokens).toBe(needle.tokens.length);
    const { lastPromptTokenMs, firstTokenMs, doneMs } = result.timings;
    expect([lastPromptTokenMs, firstTokenMs, doneMs]).toEqual(
      [lastPromptTokenMs, firstTokenMs, doneMs].sort((a, b) => a - b),
    );
  });

  it('gives the same answer when the prompt was evaluated before', async () => {
    const { tokens, answer: expected } = await needlePrompt(7, 900);
    await withSequence(tokens.length + 64, async (sequence) => {
      const progress: number[] = [];
      await sequence.evaluate(tokens.subarray(0, 700), { onProgress: (done) => progress.push(done) });
      expect(progress.at(-1)).toBe(700);
      expect(sequence.position).toBe(700);
      expect((await generate(sequence, { prompt: tokens.subarray(700) })).text).toBe(expected);
    });
  });
});

describe('where an answer ends', () => {
  it('ends at maxTokens', async () => {
    const { result, tokens } = await answer(chatPrompt('What does grep do?'), { maxTokens: 4 });
    expect(result).toMatchObject({ reason: 'length', generatedTokens: 4 });
    expect(tokens).toHaveLength(4);
  });

  it('ends when the reserved tokens are used up', async () => {
    const prompt = model.tokenize(chatPrompt('What does grep do?'), { special: true });
    const { result, tokens } = await withSequence(prompt.length + 3, (sequence) => generate(sequence, { prompt }));
    expect(result.reason).toBe('context');
    expect(tokens).toHaveLength(4);
  });

  it('refuses a prompt beyond the reserved tokens', async () => {
    const prompt = await textTokens(100);
    expect(await codeOf(() => withSequence(99, (sequence) => generate(sequence, { prompt })))).toBe('CONTEXT_FULL');
  });

  it('cuts at a stop string wherever the tokens break, and never shows a part of it', async () => {
    const { text } = await answer(chatPrompt('What does grep do?'));
    expect(text.length).toBeGreaterThan(10);
    for (let at = 1; at < text.length - 3; at += 3) {
      const stop = text.slice(at, at + 3);
      const {
        text: cut,
        pieces,
        result,
      } = await answer(chatPrompt('What does grep do?'), { stopStrings: ['zzz', stop] });
      expect(cut).toBe(text.slice(0, text.indexOf(stop)));
      expect(pieces.join('')).toBe(cut);
      expect(result.reason).toBe('stop');
    }
  });

  it('shows what was held back when no stop string follows', async () => {
    const { text } = await answer(chatPrompt('What does grep do?'));
    const { text: same } = await answer(chatPrompt('What does grep do?'), { stopStrings: [`${text}!`, '.never'] });
    expect(same).toBe(text);
  });

  it('takes any token as a stop token', async () => {
    const { tokens } = await answer(chatPrompt('What does grep do?'));
    const stop = tokens[3] ?? -1;
    const { tokens: shorter, result } = await answer(chatPrompt('What does grep do?'), { stopTokens: [stop] });
    expect(shorter).toEqual(tokens.slice(0, tokens.indexOf(stop)));
    expect(result.reason).toBe('stop');
  });
});

describe('text', () => {
  /** Makes the model say these tokens one after the other: a bias that only one token survives. */
  async function say(
    text: string,
    options: Partial<GenerateOptions> = {},
  ): Promise<{ pieces: string[]; text: string }> {
    const wanted = model.tokenize(text, { special: false });
    const pieces: string[] = [];
    await withSequence(wanted.length + 10, async (sequence) => {
      // One generation per token would lose what is held back, so the tokens are told apart by penalties: each may be said once.
      const logitBias = [...new Set(wanted)].map((token, i): [number, number] => [token, 1000 - i * 10]);
      await sequence.generate(
        {
          ...GREEDY,
          prompt: Int32Array.of(1),
          maxTokens: wanted.length,
          presencePenalty: 100,
          penaltyLastN: 1000,
          logitBias,
          ...options,
        },
        (output) => pieces.push(output.text),
      );
    });
    return { pieces, text: pieces.join('') };
  }

  it('never cuts a character in two', async () => {
    const { text, pieces } = await say('é👍ж');
    expect(text).toBe('é👍ж');
    for (const piece of pieces) expect(piece).not.toContain('\ufffd');
  });

  it('drops half a character at a limit', async () => {
    const tokens = model.tokenize('👍', { special: false }).length;
    expect(tokens).toBeGreaterThan(1);
    expect((await say('👍', { maxTokens: tokens - 1 })).text).toBe('');
  });
});

describe('sampling', () => {
  const question = chatPrompt('What can you do?');
  const free = { temperature: 1.5, maxTokens: 24, stopTokens: [] };

  it('repeats itself with the same seed and differs with another', async () => {
    const [first, second, other] = [
      await answer(question, { ...free, seed: 1 }),
      await answer(question, { ...free, seed: 1 }),
      await answer(question, { ...free, seed: 2 }),
    ];
    expect(second.tokens).toEqual(first.tokens);
    expect(other.tokens).not.toEqual(first.tokens);
  });

  it.each([
    ['top-k 1', { topK: 1 }],
    ['a tiny top-p', { topP: 0.000001 }],
    ['min-p 1', { minP: 1 }],
    ['a tiny temperature', { temperature: 0.0001 }],
  ])('is greedy with %s', async (_, options) => {
    const greedy = await answer(question, { maxTokens: 24, stopTokens: [] });
    expect((await answer(question, { ...free, ...options })).tokens).toEqual(greedy.tokens);
  });

  it('follows a logit bias', async () => {
    const { tokens } = await answer(question, { logitBias: [[777, 500]], maxTokens: 5, stopTokens: [] });
    expect(tokens).toEqual([777, 777, 777, 777, 777]);
    const greedy = await answer(question, { maxTokens: 1 });
    const banned = greedy.tokens[0] ?? -1;
    expect((await answer(question, { logitBias: [[banned, -Infinity]], maxTokens: 1 })).tokens).not.toEqual([banned]);
  });

  it.each([
    ['presence', { presencePenalty: 100 }],
    ['frequency', { frequencyPenalty: 100 }],
    ['repeat', { repeatPenalty: 50 }],
  ])('does not repeat a token under a strong %s penalty', async (_, penalty) => {
    const bias = {
      logitBias: [
        [777, 30],
        [778, 29],
        [779, 28],
      ] as [number, number][],
      maxTokens: 3,
      stopTokens: [],
    };
    const { tokens } = await answer(question, { ...bias, ...penalty, penaltyLastN: 64 });
    expect(new Set(tokens).size).toBe(3);
    expect((await answer(question, { ...bias, ...penalty, penaltyLastN: 0 })).tokens).toEqual([777, 777, 777]);
  });

  it.each([
    [{ temperature: -1 }],
    [{ temperature: NaN }],
    [{ topP: 1.5 }],
    [{ maxTokens: 0 }],
    [{ repeatPenalty: 0 }],
    [{ stopStrings: [''] }],
    [{ logitBias: [[99_999, 1]] as [number, number][] }],
    [{ logitBias: [[1, Infinity]] as [number, number][] }],
    [{ seed: -1 }],
  ])('refuses %j', async (options) => {
    expect(await codeOf(() => answer(question, options))).toBe('INVALID_ARGUMENT');
  });

  it('refuses prompts without tokens and with unknown ones', async () => {
    await withSequence(10, async (sequence) => {
      expect(await codeOf(() => sequence.evaluate(new Int32Array(0)))).toBe('INVALID_ARGUMENT');
      expect(await codeOf(() => sequence.evaluate(Int32Array.of(1, 5000)))).toBe('RANGE_VIOLATION');
      expect(await codeOf(() => sequence.evaluate(Uint32Array.of(2 ** 32 - 1)))).toBe('RANGE_VIOLATION');
    });
  });

  it('passes on what a callback throws, and ends the generation', async () => {
    const prompt = model.tokenize(question, { special: true });
    await withSequence(4000, async (sequence) => {
      const failing = sequence.generate({ ...GREEDY, prompt, maxTokens: 3000, stopTokens: [] }, () => {
        throw new RangeError('my own');
      });
      await expect(failing).rejects.toThrow('my own');
      const evaluating = sequence.evaluate(prompt, {
        onProgress: () => {
          throw new RangeError('another');
        },
      });
      await expect(evaluating).rejects.toThrow('another');
      expect(sequence.position).toBeLessThan(3000);
    });
  });
});
