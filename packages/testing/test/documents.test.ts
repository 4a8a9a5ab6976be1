import { describe, expect, it } from 'vitest';
import { needleDocument } from '../src/index.js';

/** About what muse-nano's tokenizer gives for English text. */
const tokenCount = (text: string): number => Math.ceil(text.length / 3.5);
const document = (seed: number, approximateTokens: number) => needleDocument({ seed, approximateTokens, tokenCount });

describe('needle documents', () => {
  it.each([60, 300, 1_000, 8_000, 16_000])('have about %i tokens', (tokens) => {
    for (let seed = 0; seed < 10; seed += 1) {
      const actual = tokenCount(document(seed, tokens).text);
      expect(actual).toBeGreaterThan(tokens * 0.9 - 60);
      expect(actual).toBeLessThan(tokens * 1.1 + 200);
    }
  });

  it('are the same for the same seed, and different for another one', () => {
    expect(document(7, 2_000)).toEqual(document(7, 2_000));
    expect(document(8, 2_000)).not.toEqual(document(7, 2_000));
  });

  it('hold the answer once, as a sentence of its own, and the value in it', () => {
    for (let seed = 0; seed < 50; seed += 1) {
      const { text, answer, value, question } = document(seed, 3_000);
      expect(text.split(answer)).toHaveLength(2);
      expect(answer).toContain(value);
      expect(text).not.toContain(question);
    }
  });

  it('put the needle anywhere', () => {
    const places = Array.from({ length: 40 }, (_, seed) => {
      const { text, answer } = document(seed, 3_000);
      return text.indexOf(answer) / text.length;
    });
    expect(Math.min(...places)).toBeLessThan(0.2);
    expect(Math.max(...places)).toBeGreaterThan(0.8);
  });
});
