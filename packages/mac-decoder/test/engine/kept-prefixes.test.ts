import { commonLength } from '@muser/metal';
import { describe, expect, test } from 'vitest';
import { KeptPrefixes } from '../../src/engine/kept-prefixes.js';

const tokens = (...values: number[]): Uint32Array => Uint32Array.from(values);
const range = (from: number, count: number): Uint32Array => Uint32Array.from({ length: count }, (_, i) => from + i);
const names = (prefixes: readonly { holder: string }[]): string[] => prefixes.map(({ holder }) => holder);

/** A store with these prefixes, added in this order. */
function storeOf(limit: number, prefixes: Record<string, Uint32Array>): KeptPrefixes<string> {
  const store = new KeptPrefixes<string>(limit);
  for (const [holder, kept] of Object.entries(prefixes)) store.add({ tokens: kept, holder });
  return store;
}

describe('what is kept', () => {
  test('gives way to what was used later, and counts its tokens', () => {
    const store = storeOf(100, { first: range(0, 40), second: range(100, 40) });
    expect(store).toMatchObject({ count: 2, tokens: 80 });
    expect(names(store.add({ tokens: range(200, 50), holder: 'third' }))).toEqual(['first']);
    expect(store).toMatchObject({ count: 2, tokens: 90 });
    expect(store.takeOldest()?.holder).toBe('second');
    expect(store.takeOldest()?.holder).toBe('third');
    expect(store.takeOldest()).toBeNull();
  });

  test('is nothing that is larger than the limit', () => {
    const store = storeOf(100, { small: range(0, 40) });
    expect(names(store.add({ tokens: range(200, 101), holder: 'large' }))).toEqual(['large']);
    expect(store.count).toBe(1);
    expect(new KeptPrefixes<string>(0).add({ tokens: tokens(1), holder: 'any' })).toHaveLength(1);
  });

  test('is kept once: the longer of two that begin alike', () => {
    const store = storeOf(100, { short: range(0, 10) });
    expect(names(store.add({ tokens: range(0, 20), holder: 'long' }))).toEqual(['short']);
    expect(names(store.add({ tokens: range(0, 15), holder: 'again' }))).toEqual(['again']);
    expect(store).toMatchObject({ count: 1, tokens: 20 });
  });

  test('that is asked for again is not the next to go', () => {
    const store = storeOf(100, { one: range(0, 40), other: range(100, 40) });
    store.add({ tokens: range(0, 40), holder: 'one again' });
    expect(store.takeOldest()?.holder).toBe('other');
  });
});

describe('a prompt', () => {
  test('gets the prefix of which it can use the most, once', () => {
    const store = storeOf(1_000, { short: tokens(1, 2, 3), longer: tokens(1, 2, 9, 9), other: range(50, 5) });
    const found = store.take(tokens(1, 2, 9, 9, 5));
    expect(found).toMatchObject({ usable: 4, prefix: { holder: 'longer' } });
    expect(store.take(tokens(1, 2, 9, 9, 5))).toMatchObject({ usable: 2, prefix: { holder: 'short' } });
    expect(store.take(tokens(1, 2, 9, 9, 5))).toBeNull();
  });

  test('always has a token left to evaluate', () => {
    expect(storeOf(100, { whole: range(0, 40) }).take(range(0, 40))?.usable).toBe(39);
    expect(storeOf(100, { whole: range(0, 40) }).take(tokens(0))).toBeNull();
    expect(storeOf(100, { whole: range(0, 40) }).take(tokens())).toBeNull();
  });

  test('does not take what is worth more to another prompt', () => {
    const store = storeOf(100, { document: range(0, 40) });
    expect(store.take(Uint32Array.from([...range(0, 19), 999, 998]))).toBeNull();
    expect(store.take(Uint32Array.from([...range(0, 20), 999, 998]))?.usable).toBe(20);
  });

  // promise: Rows are used for a prompt only where every single token before them is the same.
  test('is compared token by token', () => {
    for (const changed of [0, 1, 17, 38]) {
      const prompt = range(0, 60);
      prompt[changed] = 7_777;
      const usable = storeOf(100, { kept: range(0, 40) }).take(prompt)?.usable ?? 0;
      expect(usable).toBeLessThanOrEqual(changed);
    }
    expect(commonLength(tokens(1, 2, 3), tokens(1, 2, 4))).toBe(2);
    expect(commonLength(tokens(), tokens(1))).toBe(0);
  });
});
