import { MuserError } from '@muser/protocol';
import { expect, test } from 'vitest';
import { WaitingLine } from '../../src/engine/waiting-line.js';

/** A line before a room of `size`; `leave` gives room back. */
function roomOf(size: number, options: { limit?: number; deadlineMs?: number } = {}) {
  let free = size;
  const line = new WaitingLine<number>({
    tryEnter: (tokens) => {
      if (tokens > size) throw new MuserError('CONTEXT_FULL', 'never fits');
      if (tokens > free) return null;
      free -= tokens;
      return tokens;
    },
    limit: options.limit ?? 10,
    deadlineMs: options.deadlineMs ?? 60_000,
  });
  const leave = (tokens: number): void => {
    free += tokens;
    line.advance();
  };
  return { line, leave };
}

const never = new AbortController().signal;

test('lets in at once while there is room', async () => {
  const { line } = roomOf(10);
  expect(await line.enter(6, never)).toBe(6);
  expect(await line.enter(4, never)).toBe(4);
});

test('is first come, first served: a small one does not overtake a large one', async () => {
  const { line, leave } = roomOf(10);
  await line.enter(8, never);
  const order: string[] = [];
  const large = line.enter(9, never).then(() => order.push('large'));
  const small = line.enter(1, never).then(() => order.push('small'));
  expect(line.length).toBe(2);
  leave(8);
  await Promise.all([large, small]);
  expect(order).toEqual(['large', 'small']);
});

test('turns away when too many wait', async () => {
  const { line } = roomOf(1, { limit: 1 });
  await line.enter(1, never);
  const waiting = new AbortController();
  const second = line.enter(1, waiting.signal);
  await expect(line.enter(1, never)).rejects.toMatchObject({ code: 'QUEUE_FULL' });
  waiting.abort();
  await expect(second).rejects.toMatchObject({ code: 'CANCELLED' });
});

test('a wait ends at its deadline', async () => {
  const { line } = roomOf(1, { deadlineMs: 1 });
  await line.enter(1, never);
  await expect(line.enter(1, never)).rejects.toMatchObject({ code: 'DEADLINE_EXCEEDED' });
  expect(line.length).toBe(0);
});

test('when the head gives up, the next one that fits goes in', async () => {
  const { line } = roomOf(10);
  await line.enter(8, never);
  const head = new AbortController();
  const large = line.enter(9, head.signal);
  const small = line.enter(2, never);
  head.abort();
  await expect(large).rejects.toMatchObject({ code: 'CANCELLED' });
  expect(await small).toBe(2);
});

test('an aborted request does not take room', async () => {
  const { line } = roomOf(1);
  await expect(line.enter(1, AbortSignal.abort())).rejects.toMatchObject({ code: 'CANCELLED' });
  expect(await line.enter(1, never)).toBe(1);
});

test('what can never fit fails alone, also in the line', async () => {
  const { line, leave } = roomOf(2);
  await expect(line.enter(3, never)).rejects.toMatchObject({ code: 'CONTEXT_FULL' });
  await line.enter(2, never);
  const first = line.enter(1, never);
  const impossible = line.enter(3, never);
  const last = line.enter(1, never);
  leave(2);
  await expect(impossible).rejects.toMatchObject({ code: 'CONTEXT_FULL' });
  expect(await Promise.all([first, last])).toEqual([1, 1]);
});

test('closing turns everybody away', async () => {
  const { line } = roomOf(1);
  await line.enter(1, never);
  const waiting = line.enter(1, never);
  line.close();
  await expect(waiting).rejects.toMatchObject({ code: 'UNAVAILABLE' });
  await expect(line.enter(1, never)).rejects.toMatchObject({ code: 'UNAVAILABLE' });
});
