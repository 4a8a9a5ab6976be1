import { expect, test } from 'vitest';
import { TokenizerQueue } from '../../src/chat/tokenizer-queue.js';

/** A tokenizer whose calls end when the test says so. */
function heldTokenizer() {
  const running: { text: string | undefined; end: () => void; fail: (error: Error) => void }[] = [];
  return {
    running,
    texts: () => running.map(({ text }) => text),
    info: { addBos: false, bosToken: null },
    tokenizePieces: (pieces: readonly { text: string }[]) =>
      new Promise<Int32Array[]>((resolve, reject) => {
        running.push({ text: pieces[0]?.text, end: () => resolve([Int32Array.of(1)]), fail: reject });
      }),
  };
}

const never = new AbortController().signal;
const piece = (text: string) => [{ text, special: false }];
const settled = () => new Promise((resolve) => setImmediate(resolve));

test('two prompts are tokenized at a time, and one that was aborted never is', async () => {
  const model = heldTokenizer();
  const queue = new TokenizerQueue(model, { limit: 10, deadlineMs: 60_000 });
  const gone = new AbortController();
  const first = queue.of(never).tokenizePieces(piece('a'));
  const second = queue.of(never).tokenizePieces(piece('b'));
  const third = queue.of(gone.signal).tokenizePieces(piece('c'));
  const fourth = queue.of(never).tokenizePieces(piece('d'));
  await settled();
  expect(model.texts()).toEqual(['a', 'b']);
  gone.abort();
  await expect(third).rejects.toMatchObject({ code: 'CANCELLED' });
  model.running[0]?.end();
  await first;
  await settled();
  expect(model.texts()).toEqual(['a', 'b', 'd']);
  model.running[1]?.end();
  model.running[2]?.end();
  expect(await Promise.all([second, fourth])).toHaveLength(2);
});

test('one that fails makes room for the next, too many are turned away, and closing ends the wait', async () => {
  const model = heldTokenizer();
  const queue = new TokenizerQueue(model, { limit: 1, deadlineMs: 60_000 });
  const first = queue.of(never).tokenizePieces(piece('a'));
  void queue.of(never).tokenizePieces(piece('b'));
  const third = queue.of(never).tokenizePieces(piece('c'));
  await expect(queue.of(never).tokenizePieces(piece('d'))).rejects.toMatchObject({ code: 'QUEUE_FULL' });
  model.running[0]?.fail(new Error('no tokens'));
  await expect(first).rejects.toThrow('no tokens');
  await settled();
  expect(model.texts()).toEqual(['a', 'b', 'c']);
  const waiting = queue.of(never).tokenizePieces(piece('e'));
  queue.close();
  await expect(waiting).rejects.toMatchObject({ code: 'UNAVAILABLE' });
  model.running[2]?.end();
  await third;
});
