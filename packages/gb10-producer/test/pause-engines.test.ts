// What pausing and resuming do to the engines, over real gRPC and TLS.
import { existsSync } from 'node:fs';
import { readFile } from 'node:fs/promises';

import type { NodeStatus } from '@muser/protocol';
import { afterEach, describe, expect, it } from 'vitest';

import { ReloadableBackend } from '../src/backend/reloadable.js';
import { VllmBackend } from '../src/backend/vllm.js';
import { fakeOptions } from './support/fake-vllm.js';
import { orderPause, type OrderDetails, statusFor } from './support/orders.js';
import { PATTERN_GEOMETRY, PatternBackend } from './support/pattern-backend.js';
import { CountingBudget, promptTokens } from './support/rows.js';
import { TestBed, type TestPeer, until } from './support/test-bed.js';

const prompt = (length: number): Uint32Array => promptTokens(length, PATTERN_GEOMETRY.vocabularySize, 1);

let bed: TestBed;
let coordinator: TestPeer;
let decoder: TestPeer;

async function start(engine?: Parameters<typeof TestBed.start>[1]): Promise<void> {
  bed = await TestBed.start({}, engine);
  [coordinator, decoder] = [await bed.peer('coordinator'), await bed.peer('decoder')];
}

afterEach(() => bed.close());

const order = (paused: boolean, details?: OrderDetails): Promise<string[]> => orderPause(coordinator, paused, details);
const status = (): Promise<NodeStatus> => statusFor(coordinator);

describe('the engines', () => {
  it('llama.cpp gives up its weights and computes the same rows when it is back', async () => {
    await start();
    const isMapped = async (): Promise<boolean> => (await readFile('/proc/self/maps', 'utf8')).includes('.gguf');
    const request = { tokens: prompt(300) };
    const before = await decoder.receive(decoder.request(request));
    if (existsSync('/proc/self/maps')) expect(await isMapped()).toBe(true);
    await order(true);
    if (existsSync('/proc/self/maps')) expect(await isMapped()).toBe(false);
    await order(false);
    const after = await decoder.receive(decoder.request(request));
    expect(after.rows.firstDifference(before.rows)).toBeNull();
  });

  it("vLLM's worker is gone when it is paused, whatever it did, and another one serves when it is back", async () => {
    const opened: VllmBackend[] = [];
    const pids = (): readonly number[] => opened.at(-1)?.workerPids ?? [];
    const settings: Record<string, unknown> = {};
    await start(async ({ signal }) => {
      const backend = await VllmBackend.open(fakeOptions(settings, { idleUnloadMs: null }), signal);
      opened.push(backend);
      return backend;
    });
    const tokens = promptTokens(700, bed.producer.backend.model.geometry.vocabularySize, 1);
    for (const disturb of [
      () => Promise.resolve(),
      // While a prefill runs.
      () => {
        decoder.receive(decoder.request({ tokens, wireTypes: ['bf16'] })).catch(() => undefined);
        return until(() => bed.producer.transfers.load.activeTransfers === 1);
      },
      // While the supervisor restarts it.
      () => {
        process.kill(pids()[0] ?? 0, 'SIGKILL');
        return until(() => bed.producer.backend.health.state === 'starting');
      },
    ]) {
      const workers = pids();
      expect(workers.length).toBeGreaterThan(0);
      await disturb();
      await order(true, { cancelRunning: true });
      for (const pid of workers) expect(() => process.kill(pid, 0)).toThrow('ESRCH');
      expect(pids()).toEqual([]);
      expect(await status()).toMatchObject({ state: 'paused', backend: 'vllm' });
      await order(false);
      expect(pids()).not.toEqual(workers);
      expect(await status()).toMatchObject({ state: 'ready', unloaded: false });
    }
    // A worker that takes long to start is ended with its start.
    settings['fault'] = 'late:start';
    await order(true);
    const replaced = expect(order(false)).rejects.toMatchObject({ code: 'CANCELLED' });
    await until(() => bed.producer.control.state === 'resuming');
    await order(true);
    await replaced;
  });

  it('say when they are unloaded because they were idle, and are ready all the same', async () => {
    await start(({ signal }) => VllmBackend.open(fakeOptions({}, { idleUnloadMs: 20 }), signal));
    await until(() => {
      const { health } = bed.producer.backend;
      return health.state === 'ready' && health.unloaded === true;
    });
    expect(await status()).toMatchObject({ state: 'ready', unloaded: true });
    expect(await order(true)).toEqual(['draining', 'paused']);
    expect(await status()).toMatchObject({ state: 'paused', unloaded: false });
  });
});

describe('ReloadableBackend', () => {
  it('without an engine fails a prefill instead of throwing', async () => {
    await start(new PatternBackend());
    const backend = await ReloadableBackend.open(
      () => Promise.resolve(new PatternBackend()),
      new AbortController().signal,
    );
    await backend.unload();
    const run = backend.prefill({
      tokens: prompt(90),
      heldTokens: 0,
      chunkTokens: 0,
      wireType: 'f16',
      cacheScope: 'test',
      staging: new CountingBudget(1 << 20),
      signal: new AbortController().signal,
    });
    await run.computed;
    await expect(run[Symbol.asyncIterator]().next()).rejects.toMatchObject({ code: 'UNAVAILABLE' });
    expect(backend.stats()).toEqual({ activePrefills: 0, reservedTokens: 0, unreleasedChunks: 0 });
  });
});
