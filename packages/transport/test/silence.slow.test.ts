// What the keepalive and the limit for idle readers end: minutes.
import { FaultProxy } from '@muser/testing';
import { expect, it, describe } from 'vitest';
import { aborted, afterTest, connect, deferred, MIB, startProducer } from './harness.js';

describe('what only time can tell', () => {
  // promise: A half-open connection is noticed by both sides, and a reader that takes nothing loses its stream.
  // fault: lost-message
  it(
    'a half-open connection is noticed by both sides; a reader that takes nothing loses its stream',
    { timeout: 120_000 },
    async () => {
      await Promise.all([halfOpen(), nothingTaken()]);
    },
  );

  async function halfOpen(): Promise<void> {
    const { target, calls } = await startProducer(async (call) => {
      await call.send(Buffer.from('frame'));
      await aborted(call.signal);
    });
    const [host = '', port = ''] = target.split(':');
    const proxy = await FaultProxy.listen({ target: { host, port: Number(port) } });
    afterTest(() => proxy.close());
    const iterator = connect(proxy.target).prefill(Buffer.alloc(0))[Symbol.asyncIterator]();
    await iterator.next();
    proxy.freeze();
    await expect(iterator.next()).rejects.toMatchObject({ code: 'PEER_UNREACHABLE' });
    expect(await aborted(calls[0]!.signal)).toMatchObject({ code: 'CANCELLED' });
  }

  async function nothingTaken(): Promise<void> {
    const failed = deferred<unknown>();
    const { target } = await startProducer(async (call) => {
      try {
        for (;;) await call.send(Buffer.alloc(MIB));
      } catch (error) {
        failed.resolve(error);
        throw error;
      }
    });
    const iterator = connect(target).prefill(Buffer.alloc(0))[Symbol.asyncIterator]();
    await iterator.next();
    expect(await failed.promise).toMatchObject({ code: 'STALLED' });
    await iterator.return?.(undefined);
  }
});
