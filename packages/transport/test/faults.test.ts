import { FaultProxy, type ConnectionFaults } from '@muser/testing';
import { describe, expect, it } from 'vitest';
import type { PrefillCall } from '../src/index.js';
import { aborted, afterTest, connect, deferred, expectCode, MIB, readAll, startProducer } from './harness.js';

const CHUNKS = 64;
/** Well below the keepalive's limit: what must be noticed by itself. */
const SOON_MS = 20_000;

const sendChunks = async (call: PrefillCall) => {
  for (let index = 0; index < CHUNKS; index += 1) await call.send(Buffer.alloc(MIB, index));
};

async function through(target: string, faults?: (index: number) => ConnectionFaults): Promise<FaultProxy> {
  const [host = '', port = ''] = target.split(':');
  const proxy = await FaultProxy.listen({ target: { host, port: Number(port) }, ...(faults ? { faults } : {}) });
  afterTest(() => proxy.close());
  return proxy;
}

describe('a connection through a proxy', () => {
  it('passes whole when nothing is wrong, also late', async () => {
    const { target } = await startProducer(sendChunks);
    const proxy = await through(target, () => ({ toClient: { delayMs: 20 }, toServer: { delayMs: 20 } }));
    const frames = await readAll(connect(proxy.target).prefill(Buffer.alloc(0)));
    expect(frames.map((frame) => frame[0])).toEqual(Array.from({ length: CHUNKS }, (_, index) => index));
  });

  // promise: A connection that is cut fails on both sides.
  it.each([3 * MIB, 3 * MIB + 1, 17 * MIB + 12_345])(
    'that is cut at byte %i fails on both sides',
    { timeout: SOON_MS },
    async (cutAtByte) => {
      const { target, calls } = await startProducer(sendChunks);
      const proxy = await through(target, (index) => (index === 0 ? { toClient: { cutAtByte } } : {}));
      const client = connect(proxy.target);
      await expectCode(client.prefill(Buffer.alloc(0)), 'PEER_UNREACHABLE');
      expect(await aborted(calls[0]!.signal)).toMatchObject({ code: 'CANCELLED' });
      // The next call makes a new connection by itself.
      await expect
        .poll(
          () =>
            readAll(client.prefill(Buffer.alloc(0))).then(
              (frames) => frames.length,
              () => 0,
            ),
          { timeout: 10_000 },
        )
        .toBe(CHUNKS);
    },
  );

  it('that is cut during the handshake fails', async () => {
    const { target, calls } = await startProducer(sendChunks);
    const proxy = await through(target, () => ({ toClient: { cutAtByte: 600 } }));
    await expectCode(connect(proxy.target).prefill(Buffer.alloc(0)), 'PEER_UNREACHABLE');
    expect(calls).toHaveLength(0);
  });

  // promise: A network that changes, leaves out or repeats bytes breaks the connection and delivers nothing wrong.
  it.each(
    ['toClient', 'toServer'].flatMap((direction) => ['corrupts', 'drops', 'replays'].map((how) => [how, direction])),
  )('that %s some bytes (%s) fails and delivers nothing wrong', async (how, direction) => {
    const { target } = await startProducer(sendChunks);
    const at = direction === 'toClient' ? 5 * MIB : 3_000;
    // More than a TLS record may be gone or come twice.
    const range = { at, count: direction === 'toClient' ? 40_000 : 20_000 };
    const faults = how === 'corrupts' ? { corruptByte: at } : how === 'drops' ? { drop: range } : { replay: range };
    const proxy = await through(target, () => ({ [direction]: faults }));
    const frames: Buffer[] = [];
    const reading = (async () => {
      for await (const frame of connect(proxy.target).prefill(Buffer.alloc(64 * 1024))) frames.push(frame);
    })();
    await expectCode(reading, 'PEER_UNREACHABLE');
    expect(frames.length).toBeLessThan(CHUNKS);
    frames.forEach((frame, index) => expect(frame.equals(Buffer.alloc(MIB, index))).toBe(true));
  });

  // promise: A connection that is reset fails on both sides.
  it.each([600, 3 * MIB + 1])(
    'that is reset at byte %i fails on both sides',
    { timeout: SOON_MS },
    async (resetAtByte) => {
      const { target, calls } = await startProducer(sendChunks);
      const proxy = await through(target, () => ({ toClient: { resetAtByte } }));
      await expectCode(connect(proxy.target).prefill(Buffer.alloc(0)), 'PEER_UNREACHABLE');
      for (const call of calls) expect(await aborted(call.signal)).toMatchObject({ code: 'CANCELLED' });
    },
  );

  it('that only the client has lost fails there at once', { timeout: SOON_MS }, async () => {
    const { target, calls } = await startProducer(sendChunks);
    const proxy = await through(target, () => ({ toClient: { halfOpenAtByte: 3 * MIB } }));
    await expectCode(connect(proxy.target).prefill(Buffer.alloc(0)), 'PEER_UNREACHABLE');
    // The producer learns it by its keepalive (silence.slow.test.ts) or, as here, when the address is reached again.
    proxy.reset();
    expect(await aborted(calls[0]!.signal)).toMatchObject({ code: 'CANCELLED' });
  });

  // fault: lost-message
  it('that stops half-way is STALLED, and the next call makes a new connection', { timeout: SOON_MS }, async () => {
    const { target, calls } = await startProducer(sendChunks);
    const proxy = await through(target, (index) => (index === 0 ? { toClient: { stallAtByte: 6 * MIB } } : {}));
    const client = connect(proxy.target);
    await expectCode(client.prefill(Buffer.alloc(0), { idleTimeoutMs: 300 }), 'STALLED');
    expect(await readAll(client.prefill(Buffer.alloc(0), { idleTimeoutMs: 30_000 }))).toHaveLength(CHUNKS);
    expect(proxy.connectionsAccepted).toBe(2);
    proxy.reset();
    expect(await aborted(calls[0]!.signal)).toMatchObject({ code: 'CANCELLED' });
  });

  it('that freezes and thaws goes on where it was', async () => {
    const started = deferred();
    const { target } = await startProducer(async (call) => {
      started.resolve();
      await sendChunks(call);
    });
    const proxy = await through(target);
    const reading = readAll(connect(proxy.target).prefill(Buffer.alloc(0), { idleTimeoutMs: 30_000 }));
    await started.promise;
    proxy.freeze();
    await new Promise((resolve) => setTimeout(resolve, 300));
    proxy.thaw();
    expect(await reading).toHaveLength(CHUNKS);
  });
});
