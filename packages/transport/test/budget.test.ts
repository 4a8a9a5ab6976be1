import { describe, expect, it } from 'vitest';
import { ByteBudget } from '../src/index.js';
import { expectCode } from './harness.js';

/** Lets every microtask run. */
const settle = () => new Promise((resolve) => setImmediate(resolve));

function tracked(work: Promise<void>): { done: boolean } {
  const state = { done: false };
  void work.then(() => (state.done = true));
  return state;
}

describe('a byte budget', () => {
  it('lets bytes pass up to its limit and no further', async () => {
    const budget = new ByteBudget(10);
    await budget.acquire(6);
    await budget.acquire(4);
    const third = tracked(budget.acquire(1));
    await settle();
    expect(third.done).toBe(false);
    budget.release(4);
    await settle();
    expect(third.done).toBe(true);
    expect(budget.usedBytes).toBe(7);
  });

  it('serves the calls on one budget in their order, also when a later one would fit', async () => {
    const budget = new ByteBudget(10);
    await budget.acquire(8);
    const large = tracked(budget.acquire(9));
    const small = tracked(budget.acquire(1));
    await settle();
    expect([large.done, small.done]).toEqual([false, false]);
    budget.release(8);
    await settle();
    expect([large.done, small.done]).toEqual([true, true]);
  });

  it('refuses what can never fit', async () => {
    await expectCode(new ByteBudget(10).acquire(11), 'RESOURCE_EXHAUSTED');
  });

  it('stops waiting with the signal, and charges nothing for it', async () => {
    const budget = new ByteBudget(10);
    await budget.acquire(10);
    const stop = new AbortController();
    const waiting = budget.acquire(5, stop.signal);
    const behind = tracked(budget.acquire(3));
    stop.abort(new Error('enough'));
    await expect(waiting).rejects.toThrow('enough');
    expect(budget.usedBytes).toBe(10);
    budget.release(3);
    await settle();
    expect(behind.done).toBe(true);
    await expect(budget.acquire(1, stop.signal)).rejects.toThrow('enough');
  });

  it('counts in its ancestors, and waits for them', async () => {
    const root = new ByteBudget(10);
    const peer = new ByteBudget(8, root);
    const [a, b] = [new ByteBudget(8, peer), new ByteBudget(8, peer)];
    await a.acquire(5);
    await b.acquire(1);
    expect([peer.usedBytes, root.usedBytes]).toEqual([6, 6]);
    const more = tracked(b.acquire(3));
    await settle();
    expect(more.done).toBe(false);
    a.release(5);
    await settle();
    expect(more.done).toBe(true);
    expect([peer.usedBytes, root.usedBytes]).toEqual([4, 4]);
  });

  it('never lets stalled transfers stop one that has nothing in flight', async () => {
    const root = new ByteBudget(10);
    const stalled = new ByteBudget(10, root);
    await stalled.acquire(10);
    const other = new ByteBudget(10, root);
    await other.acquire(2);
    const second = tracked(other.acquire(2));
    await settle();
    expect(second.done).toBe(false);
    // Its first message has gone out: the next one may follow although the process budget is still full.
    other.release(2);
    await settle();
    expect(second.done).toBe(true);
  });
});
