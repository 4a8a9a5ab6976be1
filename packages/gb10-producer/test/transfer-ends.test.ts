// How a transfer ends before its time, over real gRPC and mutual TLS; the backend is the pattern, whose steps happen when
// a test lets them.
import { FaultProxy } from '@muser/testing';
import { describe, expect, it } from 'vitest';

import { patternRows } from './support/pattern-backend.js';
import { backend, bed, decoder, prompt, start } from './support/pattern-bed.js';
import { NOTHING_LEFT, until } from './support/test-bed.js';

describe('a transfer that ends early frees everything', () => {
  const phases: [string, () => Promise<void>][] = [
    [
      'while it waits',
      async () => {
        await start({ maxConcurrent: 1 }, 0);
        decoder.receive(decoder.request({ tokens: prompt(100) })).catch(() => undefined);
        await backend.blocked();
      },
    ],
    ['before its first chunk', () => start({}, 0)],
    ['between two chunks', () => start({}, 5)],
  ];
  // fault: held-after-abort
  it.each(phases)('cancelled by its reader %s', async (_, prepare) => {
    await prepare();
    const controller = new AbortController();
    const before = bed.producer.transfers.load.activeTransfers;
    const received = decoder.receive(decoder.request({ tokens: prompt(1000) }), { signal: controller.signal });
    const ends = expect(received).rejects.toMatchObject({ code: 'CANCELLED' });
    await until(() => bed.producer.transfers.load.activeTransfers === before + 1);
    await backend.blocked();
    controller.abort();
    await ends;
    await until(() => bed.producer.transfers.load.activeTransfers === before);
    backend.allow(Infinity);
    await decoder.receive(decoder.request({ tokens: prompt(100) }));
  });

  it('cancelled when all is computed', async () => {
    await start();
    const controller = new AbortController();
    const received = decoder.receive(decoder.request({ tokens: prompt(2000) }), {
      signal: controller.signal,
      onEvent: async (event) => {
        if (event.type !== 'shard') return;
        await until(() => backend.stats().activePrefills === 0);
        controller.abort();
      },
    });
    await expect(received).rejects.toMatchObject({ code: 'CANCELLED' });
  });

  it('when its connection is gone', async () => {
    await start({}, 5);
    const proxy = await FaultProxy.listen({ target: bed.producer.address });
    try {
      const far = await bed.peer('decoder', proxy.target);
      const ends = expect(far.receive(far.request({ tokens: prompt(1000) }))).rejects.toMatchObject({
        code: 'PEER_UNREACHABLE',
      });
      await backend.blocked();
      proxy.reset();
      await ends;
      expect(await bed.idle()).toEqual(NOTHING_LEFT);
    } finally {
      await proxy.close();
    }
  });

  it.each([0, 5])('by its deadline after %i chunks, with the reason', async (steps) => {
    await start({}, steps);
    const received = decoder.receive(decoder.request({ tokens: prompt(1000), deadlineMs: 50 }));
    await expect(received).rejects.toMatchObject({ code: 'DEADLINE_EXCEEDED' });
    expect(await bed.idle()).toEqual(NOTHING_LEFT);
  });

  // fault: queued-for-ever
  it('by its deadline in the queue', async () => {
    await start({}, 0);
    const first = decoder.receive(decoder.request({ tokens: prompt(100) }));
    await backend.blocked();
    const second = decoder.receive(decoder.request({ tokens: prompt(100), deadlineMs: 50 }));
    await expect(second).rejects.toMatchObject({ code: 'DEADLINE_EXCEEDED' });
    expect(bed.producer.transfers.load.queueLength).toBe(0);
    backend.allow(Infinity);
    await first;
  });

  it('when rows cannot be read, without the text of an error that is not ours', async () => {
    await start();
    backend.readError = new Error('secret');
    const received = decoder.receive(decoder.request({ tokens: prompt(1000) }));
    await expect(received).rejects.toMatchObject({
      code: 'INTERNAL',
      message: expect.not.stringContaining('secret') as string,
    });
    backend.readError = null;
    await decoder.receive(decoder.request({ tokens: prompt(1000) }));
  });

  // fault: cause-lost
  it('when its backend fails, with the reason', async () => {
    await start({ maxConcurrent: 1 }, 5);
    const ends = expect(decoder.receive(decoder.request({ tokens: prompt(1000) }))).rejects.toMatchObject({
      code: 'CANCELLED',
    });
    await backend.blocked();
    await backend.close();
    await ends;
  });
});

describe('draining', () => {
  it('lets what runs finish, refuses what waits and what comes', async () => {
    await start({ maxConcurrent: 1 }, 5);
    const coordinator = await bed.peer('coordinator');
    const states: string[] = [];
    const watching = (async () => {
      for await (const { state } of coordinator.client.watchNode({ protocolVersion: 1, intervalMs: 60_000 })) {
        states.push(state);
      }
    })();
    const watched = watching.catch((error: unknown) => error);
    await until(() => states.length === 1);
    const tokens = prompt(1000);
    const running = decoder.receive(decoder.request({ tokens }));
    await backend.blocked();
    const waiting = expect(decoder.receive(decoder.request({ tokens: prompt(100) }))).rejects.toMatchObject({
      code: 'PRODUCER_DRAINING',
    });
    await until(() => bed.producer.transfers.load.queueLength === 1);
    const drained = bed.producer.transfers.drain(30_000);
    await waiting;
    await expect(decoder.receive(decoder.request({ tokens: prompt(100) }))).rejects.toMatchObject({
      code: 'PRODUCER_DRAINING',
    });
    await until(() => states.length === 2);
    expect(states).toEqual(['ready', 'draining']);
    backend.allow(Infinity);
    expect((await running).rows.firstDifference(patternRows(tokens))).toBeNull();
    await drained;
    coordinator.client.close();
    await watched;
  });

  it('cancels what does not finish in time', async () => {
    await start({ drainMs: 20 }, 5);
    const ends = expect(decoder.receive(decoder.request({ tokens: prompt(1000) }))).rejects.toMatchObject({
      code: 'PRODUCER_DRAINING',
    });
    await backend.blocked();
    await bed.producer.close();
    await ends;
  });
});
