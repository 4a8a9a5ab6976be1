import { expect, it } from 'vitest';
import {
  FLOW_CONTROL_WINDOW_BYTES,
  MAX_PEER_BYTES_IN_FLIGHT,
  MAX_RECEIVED_BYTES_WAITING,
  MAX_TRANSFER_BYTES_IN_FLIGHT,
  type PrefillCall,
} from '../src/index.js';
import { authority, connect, MIB, startProducer } from './harness.js';

const SLOW_FRAMES = 200;
const QUICK_FRAMES = 400;
const SLOW_READERS = 5;
const BYTES_PER_SECOND = 1_000_000;
/** What the kernel keeps of a loopback connection: both socket buffers, autotuned. */
const KERNEL_BYTES = 16 * MIB;

/** One transfer as its sender sees it. */
interface Sending {
  call: PrefillCall;
  sent: number;
  mostInFlight: number;
}

async function sendFrames(sending: Sending, frames: number): Promise<void> {
  const frame = Buffer.alloc(MIB, 5);
  for (; sending.sent < frames; sending.sent += 1) {
    await sending.call.send(frame);
    sending.mostInFlight = Math.max(sending.mostInFlight, sending.call.bytesInFlight);
  }
}

async function countFrames(frames: AsyncIterable<Buffer>): Promise<number> {
  let count = 0;
  for await (const _ of frames) count += 1;
  return count;
}

// promise: A reader at 1 MB/s slows its sender, which keeps a bounded part of the transfer, and nothing else.
// fault: writes-without-drain
it('readers at 1 MB/s slow their senders, and nothing else', { timeout: 150_000 }, async () => {
  const slow = new Map<string, Sending>();
  const { target } = await startProducer((call) => {
    const name = call.requestBytes.toString();
    const sending = { call, sent: 0, mostInFlight: 0 };
    if (name === 'quick') return sendFrames(sending, QUICK_FRAMES);
    slow.set(name, sending);
    return sendFrames(sending, SLOW_FRAMES);
  });
  const client = connect(target);
  const received = new Map<string, number>();
  const stop = new AbortController();
  const readers = Array.from({ length: SLOW_READERS }, async (_, index) => {
    const name = `slow ${index}`;
    for await (const frame of client.prefill(Buffer.from(name), { signal: stop.signal })) {
      received.set(name, (received.get(name) ?? 0) + 1);
      await new Promise((resolve) => setTimeout(resolve, (frame.length / BYTES_PER_SECOND) * 1000));
    }
  });
  const ended = Promise.allSettled(readers);
  await expect.poll(() => received.size).toBe(SLOW_READERS);

  // A transfer of the same peer on the same connection, and one of another peer: both end while all slow ones run.
  const other = connect(target, { identity: await authority.identity('decoder') });
  const quick = await Promise.all([client, other].map((reader) => countFrames(reader.prefill(Buffer.from('quick')))));
  expect(quick).toEqual([QUICK_FRAMES, QUICK_FRAMES]);

  const bound = MAX_TRANSFER_BYTES_IN_FLIGHT + FLOW_CONTROL_WINDOW_BYTES + MAX_RECEIVED_BYTES_WAITING + KERNEL_BYTES;
  for (const [name, { sent, mostInFlight }] of slow) {
    expect((sent - (received.get(name) ?? 0)) * MIB).toBeLessThan(bound);
    expect(mostInFlight).toBeLessThanOrEqual(MAX_TRANSFER_BYTES_IN_FLIGHT);
    expect(sent).toBeLessThan(SLOW_FRAMES);
  }
  const inFlight = [...slow.values()].reduce((sum, { call }) => sum + call.bytesInFlight, 0);
  expect(inFlight).toBeLessThanOrEqual(MAX_PEER_BYTES_IN_FLIGHT + SLOW_READERS * MIB);

  // They are slow and not stuck.
  const before = new Map(received);
  for (const name of slow.keys()) await expect.poll(() => received.get(name)).toBeGreaterThan(before.get(name) ?? 0);
  stop.abort();
  await ended;
});
