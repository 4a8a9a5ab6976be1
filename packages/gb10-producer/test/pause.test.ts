// Pausing and resuming over real gRPC and TLS: what is told, what is refused, what is freed, and what a restart keeps.
import { existsSync } from 'node:fs';
import { chmod, mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

import { MuserError, type NodeStatus } from '@muser/protocol';
import { afterEach, describe, expect, it } from 'vitest';

import type { PrefillBackend } from '../src/backend/backend.js';
import { orderPause, type OrderDetails, statusFor } from './support/orders.js';
import { PATTERN_GEOMETRY, PatternBackend, patternRows } from './support/pattern-backend.js';
import { promptTokens } from './support/rows.js';
import { TestBed, type TestPeer, until } from './support/test-bed.js';

const prompt = (length: number): Uint32Array => promptTokens(length, PATTERN_GEOMETRY.vocabularySize, 1);

let bed: TestBed;
let coordinator: TestPeer;
let decoder: TestPeer;

async function start(
  engine?: Parameters<typeof TestBed.start>[1],
  config: Record<string, unknown> = {},
): Promise<void> {
  bed = await TestBed.start(config, engine);
  await connect();
}

async function connect(): Promise<void> {
  [coordinator, decoder] = [await bed.peer('coordinator'), await bed.peer('decoder')];
}

afterEach(() => bed.close());

const order = (paused: boolean, details?: OrderDetails): Promise<string[]> => orderPause(coordinator, paused, details);
const status = (): Promise<NodeStatus> => statusFor(coordinator);

const pauseFile = (): string => join(bed.stateDir, 'paused.json');

describe('an idle producer', () => {
  it('pauses and resumes, and says so before, meanwhile and after', async () => {
    await start(new PatternBackend());
    const before = await status();
    expect(before).toMatchObject({ state: 'ready', unloaded: false });
    expect(await order(true)).toEqual(['draining', 'paused']);
    // What it would serve stays known.
    expect(await status()).toMatchObject({
      state: 'paused',
      model: before.model,
      geometry: before.geometry,
      maxPromptTokens: before.maxPromptTokens,
    });
    await expect(decoder.receive(decoder.request({ tokens: prompt(100) }))).rejects.toMatchObject({
      code: 'PRODUCER_PAUSED',
    });
    expect(await order(false)).toEqual(['starting', 'ready']);
    const tokens = prompt(100);
    expect((await decoder.receive(decoder.request({ tokens }))).rows.firstDifference(patternRows(tokens))).toBeNull();
  });

  it('takes an order that is carried out already', async () => {
    await start(new PatternBackend());
    expect(await order(false)).toEqual(['ready']);
    await order(true);
    expect(await order(true)).toEqual(['paused']);
    await order(false);
    expect(await order(false)).toEqual(['ready']);
  });

  it('takes orders from the coordinator alone', async () => {
    await start(new PatternBackend());
    const request = { protocolVersion: 1, paused: true, cancelRunning: true, deadlineMs: 1_000 };
    for (const peer of [decoder, await bed.peer('producer')]) {
      await expect(peer.client.setPaused(request).next()).rejects.toMatchObject({ code: 'PERMISSION_DENIED' });
    }
    expect(await status()).toMatchObject({ state: 'ready' });
  });

  it('tells its watchers at once', async () => {
    await start(new PatternBackend());
    const states: string[] = [];
    const watching = (async () => {
      for await (const { state } of coordinator.client.watchNode({ protocolVersion: 1, intervalMs: 60_000 })) {
        if (states.push(state) === 5) return;
      }
    })();
    await until(() => states.length === 1);
    await order(true);
    await until(() => states.length === 3);
    await order(false);
    await watching;
    expect(states).toEqual(['ready', 'draining', 'paused', 'starting', 'ready']);
  });
});

describe('a producer at work', () => {
  it('finishes what runs, refuses what waits and what comes, and unloads after that', async () => {
    const backend = new PatternBackend({ maxConcurrent: 1 }, 5);
    await start(backend);
    const tokens = prompt(1000);
    const running = decoder.receive(decoder.request({ tokens }));
    await backend.blocked();
    const waiting = expect(decoder.receive(decoder.request({ tokens: prompt(90) }))).rejects.toMatchObject({
      code: 'PRODUCER_PAUSED',
    });
    await until(() => bed.producer.transfers.load.queueLength === 1);
    const paused = order(true);
    await waiting;
    await expect(decoder.receive(decoder.request({ tokens: prompt(90) }))).rejects.toMatchObject({
      code: 'PRODUCER_PAUSED',
    });
    expect(bed.producer.backend).toMatchObject({ isLoaded: true });
    backend.allow(Infinity);
    expect((await running).rows.firstDifference(patternRows(tokens))).toBeNull();
    expect(await paused).toEqual(['draining', 'paused']);
    expect(bed.producer.backend).toMatchObject({ isLoaded: false });
  });

  it('cancels what runs when it is told to, also later', async () => {
    const backend = new PatternBackend({ maxConcurrent: 1 }, 5);
    await start(backend);
    const cancelled = expect(decoder.receive(decoder.request({ tokens: prompt(1000) }))).rejects.toMatchObject({
      code: 'PRODUCER_PAUSED',
    });
    await backend.blocked();
    const patient = order(true);
    await until(() => bed.producer.control.state === 'pausing');
    await order(true, { cancelRunning: true });
    await cancelled;
    expect((await patient).at(-1)).toBe('paused');
  });

  it('says after the deadline what it waits for, and pauses all the same', async () => {
    const backend = new PatternBackend({ maxConcurrent: 1 }, 5);
    await start(backend);
    const running = decoder.receive(decoder.request({ tokens: prompt(1000) }));
    await backend.blocked();
    await expect(order(true, { deadlineMs: 1 })).rejects.toMatchObject({
      code: 'DEADLINE_EXCEEDED',
      message: expect.stringContaining('1 transfers still run') as string,
    });
    backend.allow(Infinity);
    await running;
    await until(() => bed.producer.control.state === 'paused');
  });

  it('goes on pausing when whoever ordered it is gone', async () => {
    const backend = new PatternBackend({ maxConcurrent: 1 }, 5);
    await start(backend);
    const running = decoder.receive(decoder.request({ tokens: prompt(1000) }));
    await backend.blocked();
    const request = { protocolVersion: 1, paused: true, cancelRunning: false, deadlineMs: 50_000 };
    for await (const { state } of coordinator.client.setPaused(request)) if (state === 'draining') break;
    backend.allow(Infinity);
    await running;
    await until(() => bed.producer.control.state === 'paused');
  });

  it('that is resumed while it still finishes goes on with the engine that it has', async () => {
    let opened = 0;
    const backend = new PatternBackend({ maxConcurrent: 1 }, 5);
    await start(() => {
      opened += 1;
      return Promise.resolve(backend);
    });
    const tokens = prompt(1000);
    const running = decoder.receive(decoder.request({ tokens }));
    await backend.blocked();
    const replaced = expect(order(true)).rejects.toMatchObject({ code: 'CANCELLED' });
    await until(() => bed.producer.control.state === 'pausing');
    expect((await order(false)).at(-1)).toBe('ready');
    await replaced;
    expect(existsSync(pauseFile())).toBe(false);
    backend.allow(Infinity);
    expect((await running).rows.firstDifference(patternRows(tokens))).toBeNull();
    await decoder.receive(decoder.request({ tokens: prompt(90) }));
    expect(opened).toBe(1);
  });
});

describe('orders that cross', () => {
  it('end as the last one says, whatever came before, with the model loaded at most once', async () => {
    let loaded = 0;
    await start(() => {
      const backend = new PatternBackend();
      expect((loaded += 1)).toBe(1);
      const close = backend.close.bind(backend);
      backend.close = async () => {
        await close();
        loaded -= 1;
      };
      return Promise.resolve(backend);
    });
    for (const last of [true, false, true]) {
      const orders = [last, !last, last, !last, last].map((paused) => order(paused));
      const ends = await Promise.allSettled(orders);
      for (const end of ends) if (end.status === 'rejected') expect(end.reason).toMatchObject({ code: 'CANCELLED' });
      expect(ends.at(-1)).toMatchObject({ status: 'fulfilled' });
      expect(await status()).toMatchObject({ state: last ? 'paused' : 'ready' });
      expect(existsSync(pauseFile())).toBe(last);
      expect(loaded).toBe(last ? 0 : 1);
    }
  });

  it('end a load that is under way, and nothing of it is left', async () => {
    let opens = 0;
    let aborted = 0;
    await start(({ signal }) => {
      opens += 1;
      if (opens === 1) return Promise.resolve(new PatternBackend());
      return new Promise<PrefillBackend>((_, reject) => {
        signal.addEventListener('abort', () => {
          aborted += 1;
          reject(signal.reason as Error);
        });
      });
    });
    await order(true);
    const replaced = expect(order(false)).rejects.toMatchObject({ code: 'CANCELLED' });
    await until(() => opens === 2);
    expect((await order(true)).at(-1)).toBe('paused');
    await replaced;
    expect(aborted).toBe(1);
    // One that hangs in the load does not keep the process from closing, either.
    order(false).catch(() => undefined);
    await until(() => opens === 3);
  });
});

describe('a restart', () => {
  it('keeps it paused without loading the model, until it is resumed', async () => {
    let opens = 0;
    await start(() => {
      opens += 1;
      return Promise.resolve(new PatternBackend());
    });
    const { model, geometry } = await status();
    await order(true);
    for (let restarts = 0; restarts < 2; restarts += 1) {
      await bed.restart();
      await connect();
      expect(await status()).toMatchObject({ state: 'paused', backend: 'pattern', model, geometry });
      await expect(decoder.receive(decoder.request({ tokens: prompt(90) }))).rejects.toMatchObject({
        code: 'PRODUCER_PAUSED',
      });
      expect(opens).toBe(1);
    }
    expect(await order(false)).toEqual(['starting', 'ready']);
    expect(opens).toBe(2);
    await decoder.receive(decoder.request({ tokens: prompt(90) }));
    await bed.restart();
    await connect();
    expect(await status()).toMatchObject({ state: 'ready' });
  });

  it('while it still finishes is a pause, too', async () => {
    const backend = new PatternBackend({ maxConcurrent: 1 }, 5);
    await start(backend, { drainMs: 1 });
    const cut = decoder.receive(decoder.request({ tokens: prompt(1000) })).catch((error: unknown) => error);
    await backend.blocked();
    order(true).catch(() => undefined);
    await until(() => existsSync(pauseFile()));
    await bed.restart();
    expect(await cut).toBeInstanceOf(MuserError);
    await connect();
    expect(await status()).toMatchObject({ state: 'paused' });
  });

  it('refuses a damaged file with what to do, and starts when that is done', async () => {
    await start(new PatternBackend());
    await order(true);
    const good = await readFile(pauseFile(), 'utf8');
    for (const bad of ['', '{}', 'null', good.slice(0, -20), good.replace('"kvHeads":2', '"kvHeads":-2')]) {
      await writeFile(pauseFile(), bad);
      await expect(bed.restart()).rejects.toMatchObject({
        code: 'CONFIG_INVALID',
        message: expect.stringContaining('delete it') as string,
      });
    }
    await rm(pauseFile());
    await bed.restart();
    await connect();
    expect(await status()).toMatchObject({ state: 'ready' });
  });
});

describe('what can fail', () => {
  it('an order that cannot be written down is not carried out', async () => {
    await start(new PatternBackend());
    // A folder in its place fails for root as well.
    await mkdir(join(pauseFile(), 'occupied'), { recursive: true });
    await expect(order(true)).rejects.toMatchObject({ code: 'UNAVAILABLE' });
    expect(await status()).toMatchObject({ state: 'ready' });
    await decoder.receive(decoder.request({ tokens: prompt(90) }));
    await rm(pauseFile(), { recursive: true });
    await order(true);
    await rm(pauseFile());
    await mkdir(join(pauseFile(), 'occupied'), { recursive: true });
    await expect(order(false)).rejects.toMatchObject({ code: 'UNAVAILABLE' });
    expect(await status()).toMatchObject({ state: 'paused' });
    await chmod(bed.stateDir, 0o700);
    await rm(pauseFile(), { recursive: true });
    await order(false);
  });

  it('a model that does not load is told, kept as an error, and tried again by the next order', async () => {
    let opens = 0;
    await start(() => {
      opens += 1;
      if (opens === 2) return Promise.reject(new MuserError('MODEL_LOAD_FAILED', 'the file is gone'));
      return Promise.resolve(new PatternBackend());
    });
    await order(true);
    await expect(order(false)).rejects.toMatchObject({ code: 'MODEL_LOAD_FAILED', message: 'the file is gone' });
    expect(await status()).toMatchObject({ state: 'error', reason: 'the file is gone' });
    await expect(decoder.receive(decoder.request({ tokens: prompt(90) }))).rejects.toMatchObject({
      code: 'UNAVAILABLE',
      message: 'the file is gone',
    });
    expect(await order(false)).toEqual(['starting', 'ready']);
    await decoder.receive(decoder.request({ tokens: prompt(90) }));
  });

  it('an engine that has given up is started again by a resume', async () => {
    let opens = 0;
    const first = new PatternBackend();
    await start(() => Promise.resolve((opens += 1) === 1 ? first : new PatternBackend()));
    first.health = { state: 'error', reason: 'it ended too often' };
    expect(await status()).toMatchObject({ state: 'error' });
    // Cut to what a status has room for, between characters.
    first.health = { state: 'error', reason: `x${'😀'.repeat(400)}` };
    expect(await status()).toMatchObject({ reason: `x${'😀'.repeat(255)}` });
    expect(await order(false)).toEqual(['starting', 'ready']);
    expect(opens).toBe(2);
    await decoder.receive(decoder.request({ tokens: prompt(90) }));
  });
});
