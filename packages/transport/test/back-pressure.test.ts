import { describe, expect, it } from 'vitest';
import {
  FLOW_CONTROL_WINDOW_BYTES,
  MAX_RECEIVED_BYTES_WAITING,
  MAX_TRANSFER_BYTES_IN_FLIGHT,
  type PrefillCall,
} from '../src/index.js';
import { connect, MIB, readAll, settled, startProducer } from './harness.js';

/** What the kernel keeps of a loopback connection: both socket buffers, autotuned. */
const KERNEL_BYTES = 16 * MIB;
const TOTAL = 400;

function externalBytes(): number {
  global.gc?.();
  const { external, arrayBuffers } = process.memoryUsage();
  return external + arrayBuffers;
}

describe('back-pressure', () => {
  // promise: A reader that stops stops its sender: what both hold is bounded, and nothing is lost.
  // fault: writes-without-drain
  // fault: memory-outside-heap
  it('stops the sender when the reader stops, bounds what both hold, and loses nothing', async () => {
    let sent = 0;
    let mostInFlight = 0;
    const frame = Buffer.alloc(MIB, 5);
    const { target } = await startProducer(async (call) => {
      for (; sent < TOTAL; sent += 1) {
        await call.send(frame);
        mostInFlight = Math.max(mostInFlight, call.bytesInFlight);
      }
    });
    const before = externalBytes();
    const iterator = connect(target).prefill(Buffer.alloc(0))[Symbol.asyncIterator]();
    await iterator.next();
    const ahead = await settled(() => sent);
    const bound = MAX_TRANSFER_BYTES_IN_FLIGHT + FLOW_CONTROL_WINDOW_BYTES + MAX_RECEIVED_BYTES_WAITING + KERNEL_BYTES;
    expect(ahead * MIB).toBeLessThan(bound);
    expect(mostInFlight).toBeLessThanOrEqual(MAX_TRANSFER_BYTES_IN_FLIGHT);
    // Copies on the way double some of it; unbounded buffering would hold hundreds of megabytes here.
    expect(externalBytes() - before).toBeLessThan(2 * bound);

    let received = 1;
    for (let result = await iterator.next(); !result.done; result = await iterator.next()) received += 1;
    expect(received).toBe(TOTAL);
    expect(sent).toBe(TOTAL);
  });

  it('does not keep a cancel from reaching a sender that waits', { timeout: 20_000 }, async () => {
    const reasons: unknown[] = [];
    let sent = 0;
    const { target } = await startProducer(async (call) => {
      try {
        for (; sent < TOTAL; sent += 1) await call.send(Buffer.alloc(MIB));
      } catch (error) {
        reasons.push(error);
      }
    });
    const iterator = connect(target).prefill(Buffer.alloc(0))[Symbol.asyncIterator]();
    await iterator.next();
    await settled(() => sent);
    await iterator.return?.(undefined);
    await expect.poll(() => reasons, { timeout: 15_000 }).toEqual([expect.objectContaining({ code: 'CANCELLED' })]);
  });

  it('lets small frames pass without waiting for each, and counts them too', async () => {
    let mostInFlight = 0;
    const { target } = await startProducer(async (call: PrefillCall) => {
      for (let index = 0; index < 5_000; index += 1) {
        await call.send(Buffer.alloc(100, index));
        mostInFlight = Math.max(mostInFlight, call.bytesInFlight);
      }
    });
    expect(await readAll(connect(target).prefill(Buffer.alloc(0)))).toHaveLength(5_000);
    expect(mostInFlight).toBeGreaterThan(0);
  });

  // promise: A slow reader does not slow another one.
  it('of one reader does not slow another one of the same peer', async () => {
    const { target } = await startProducer(async (call) => {
      for (let index = 0; index < 60; index += 1) await call.send(Buffer.alloc(MIB));
    });
    const client = connect(target);
    const slow = Array.from({ length: 6 }, () => client.prefill(Buffer.alloc(0))[Symbol.asyncIterator]());
    for (const iterator of slow) await iterator.next();
    expect(await readAll(client.prefill(Buffer.alloc(0)))).toHaveLength(60);
    for (const iterator of slow) await iterator.return?.();
  });
});
