// Whose cached rows a prefill may use. That a scope is kept by vLLM itself is tested with the real one (vllm-backend, e2e).
import { expect, it } from 'vitest';

import type { PrefillRun, PrefillTask } from '../src/backend/backend.js';
import { PatternBackend } from './support/pattern-backend.js';
import { promptTokens } from './support/rows.js';
import { TestBed } from './support/test-bed.js';

class ScopesBackend extends PatternBackend {
  readonly scopes: string[] = [];

  override prefill(task: PrefillTask): PrefillRun {
    this.scopes.push(task.cacheScope);
    return super.prefill(task);
  }
}

/** The scopes of two prefills for one decoder and one for another. */
async function scopesWith(vllm: object): Promise<string[]> {
  const backend = new ScopesBackend({ maxConcurrent: 1 }, Infinity);
  const bed = await TestBed.start({ vllm }, backend);
  try {
    const [one, other] = [await bed.peer('decoder'), await bed.peer('decoder')];
    for (const decoder of [one, one, other]) {
      await decoder.receive(decoder.request({ tokens: promptTokens(20, 1000, 1) }));
    }
    expect(one.identity.nodeId).not.toBe(other.identity.nodeId);
    return backend.scopes;
  } finally {
    await bed.close();
  }
}

it('each decoder uses its own cached rows', async () => {
  const [first, again, other] = await scopesWith({});
  expect(again).toBe(first);
  expect(other).not.toBe(first);
});

it('decoders share cached rows when the producer is told so', async () => {
  expect(new Set(await scopesWith({ sharedPrefixCache: true })).size).toBe(1);
});
