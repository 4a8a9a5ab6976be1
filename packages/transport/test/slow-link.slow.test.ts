import { FaultProxy } from '@muser/testing';
import { expect, it } from 'vitest';
import { afterTest, connect, MIB, readAll, startProducer } from './harness.js';

/** So much that pings wait behind it for longer than a usual keepalive allows. */
const FRAMES = 24;
const BYTES_PER_SECOND = 400_000;

// fault: keepalive-too-often
it('finishes over a link that takes a minute for what is in flight', { timeout: 180_000 }, async () => {
  const { target } = await startProducer(async (call) => {
    for (let index = 0; index < FRAMES; index += 1) await call.send(Buffer.alloc(MIB, index));
  });
  const [host = '', port = ''] = target.split(':');
  const proxy = await FaultProxy.listen({
    target: { host, port: Number(port) },
    faults: () => ({ toClient: { bytesPerSecond: BYTES_PER_SECOND } }),
  });
  afterTest(() => proxy.close());
  const frames = await readAll(connect(proxy.target).prefill(Buffer.alloc(0)));
  expect(frames.map((frame) => frame[0])).toEqual(Array.from({ length: FRAMES }, (_, index) => index));
});
