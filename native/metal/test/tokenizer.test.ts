import { beforeAll, describe, expect, it } from 'vitest';
import type { Model } from '../ts/index.js';
import { codeOf, nano } from './support.js';

let model: Model;
beforeAll(async () => {
  model = await nano();
});

function bytesOf(tokens: Int32Array): Buffer {
  return Buffer.concat([...tokens].map((token) => model.pieceBytes(token)));
}

describe('tokenizer', () => {
  it.each([
    ['plain text', 'The quick brown fox jumps over the lazy dog.'],
    ['emoji', 'a 👩‍👩‍👧‍👦 family, 🇩🇪 flag, 👍🏽 thumb'],
    ['other scripts', 'Приве́т 你好 مرحبا नमस्ते Ελλάδα'],
    ['white space', ' \t\n\n   a \r\n b  '],
    ['every character up to U+04FF', Array.from({ length: 0x4ff }, (_, i) => String.fromCodePoint(i + 1)).join('')],
    ['a long line', 'ab'.repeat(20_000)],
    ['nothing', ''],
  ])('gives %s back byte for byte', (_, text) => {
    expect(bytesOf(model.tokenize(text, { special: false })).toString('utf8')).toBe(text);
  });

  it('stands for every byte', () => {
    const seen = new Set<number>();
    for (let token = 0; token < model.info.vocabularySize; token++) {
      const piece = model.pieceBytes(token);
      if (piece.length === 1) seen.add(piece[0] ?? -1);
    }
    expect(seen.size).toBe(256);
  });

  it('makes single tokens of special ones only when asked, and never adds one', () => {
    expect([...model.tokenize('<|eot|>', { special: true })]).toEqual([model.info.eotToken]);
    expect(model.tokenize('<|eot|>', { special: false }).length).toBeGreaterThan(1);
    expect(model.tokenize('a', { special: true })).toHaveLength(1);
    expect(model.isEndOfGeneration(model.info.eotToken ?? -1)).toBe(true);
  });

  it('gives the same for the pieces of a prompt, in their order, while the loop runs on', async () => {
    const long = 'It was a bright cold day in April. '.repeat(2_000);
    const pieces = [
      { text: '<|eot|>', special: true },
      { text: long, special: false },
      { text: '', special: false },
      { text: '<|eot|>', special: false },
    ];
    let turns = 0;
    const timer = setInterval(() => (turns += 1), 0);
    const found = await Promise.all([model.tokenizePieces(pieces), model.tokenizePieces([])]);
    clearInterval(timer);
    expect(turns).toBeGreaterThan(0);
    expect(found[1]).toEqual([]);
    expect(found[0]).toEqual(pieces.map(({ text, special }) => model.tokenize(text, { special })));
  });

  it('refuses pieces that are none', async () => {
    const wrong = [{ text: 7, special: true }] as unknown as { text: string; special: boolean }[];
    expect(await codeOf(() => model.tokenizePieces(wrong))).toBe('INVALID_ARGUMENT');
  });

  it('refuses tokens outside the vocabulary', async () => {
    expect(await codeOf(() => model.pieceBytes(4096))).toBe('RANGE_VIOLATION');
    expect(await codeOf(() => model.pieceBytes(-1))).toBe('INVALID_ARGUMENT');
    expect(await codeOf(() => model.isEndOfGeneration(2 ** 31))).toBe('RANGE_VIOLATION');
  });
});
