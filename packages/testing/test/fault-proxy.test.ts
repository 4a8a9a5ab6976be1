import { connect, createServer, type AddressInfo, type Socket } from 'node:net';
import { afterEach, describe, expect, it } from 'vitest';
import { FaultProxy, type ConnectionFaults } from '../src/index.js';

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

/** A server that sends `bytes` and ends, behind a proxy with the given faults; what its client gets. */
async function download(
  bytes: Buffer,
  faults: ConnectionFaults,
  whenReceived?: (total: number, socket: Socket) => void,
) {
  const server = createServer((socket) => socket.on('error', () => undefined).end(bytes));
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  cleanups.push(() => new Promise((resolve) => server.close(resolve)));
  const { port } = server.address() as AddressInfo;
  const proxy = await FaultProxy.listen({ target: { host: '127.0.0.1', port }, faults: () => faults });
  cleanups.push(() => proxy.close());
  const socket = connect(proxy.address);
  const received: Buffer[] = [];
  let total = 0;
  socket.on('error', () => undefined);
  socket.on('data', (chunk) => {
    received.push(chunk);
    total += chunk.length;
    whenReceived?.(total, socket);
  });
  const started = performance.now();
  await new Promise((resolve) => socket.once('close', resolve));
  return { data: Buffer.concat(received), milliseconds: performance.now() - started, proxy };
}

const BYTES = Buffer.from(Array.from({ length: 300_000 }, (_, index) => index % 251));

describe('the fault proxy', () => {
  it('changes nothing without faults', async () => {
    const { data, proxy } = await download(BYTES, {});
    expect(data.equals(BYTES)).toBe(true);
    await expect.poll(() => proxy.connectionsOpen).toBe(0);
  });

  it.each([0, 1, 65_536, 299_999])('cuts at byte %i exactly', async (cutAtByte) => {
    const { data } = await download(BYTES, { toClient: { cutAtByte } });
    expect(data.equals(BYTES.subarray(0, cutAtByte))).toBe(true);
  });

  it('flips one bit of one byte', async () => {
    const { data } = await download(BYTES, { toClient: { corruptByte: 123_456 } });
    const different = [...data.keys()].filter((index) => data[index] !== BYTES[index]);
    expect(different).toEqual([123_456]);
    expect(data[123_456]).toBe(BYTES[123_456]! ^ 1);
  });

  it('stalls after exactly so many bytes, with the connection open', async () => {
    const stallAtByte = 70_001;
    const { data } = await download(BYTES, { toClient: { stallAtByte } }, (total, socket) => {
      if (total === stallAtByte) setTimeout(() => socket.destroy(), 100);
    });
    expect(data.equals(BYTES.subarray(0, stallAtByte))).toBe(true);
  });

  it('slows down and delays, and loses nothing', async () => {
    const slow = await download(BYTES, { toClient: { bytesPerSecond: 600_000 } });
    expect(slow.data.equals(BYTES)).toBe(true);
    expect(slow.milliseconds).toBeGreaterThan(300);
    const late = await download(BYTES, { toClient: { delayMs: 200 } });
    expect(late.data.equals(BYTES)).toBe(true);
    expect(late.milliseconds).toBeGreaterThan(150);
  });
});
