import { connect, createServer, type AddressInfo, type Socket } from 'node:net';
import { afterEach, describe, expect, it } from 'vitest';
import { FaultProxy, Random, type ConnectionFaults, type Direction, type Faults } from '../src/index.js';
import { FaultyStream } from '../src/faults.js';

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

/** A server of this test, on a port of its own. */
async function listen(onConnection: (socket: Socket) => void): Promise<{ host: string; port: number }> {
  const sockets = new Set<Socket>();
  const server = createServer({ allowHalfOpen: true }, (socket) => {
    sockets.add(socket);
    onConnection(socket);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  cleanups.push(() => {
    for (const socket of sockets) socket.destroy();
    return new Promise((resolve) => server.close(resolve));
  });
  return { host: '127.0.0.1', port: (server.address() as AddressInfo).port };
}

async function proxied(target: { host: string; port: number }, faults: ConnectionFaults): Promise<FaultProxy> {
  const proxy = await FaultProxy.listen({ target, faults: () => faults });
  cleanups.push(() => proxy.close());
  return proxy;
}

/** What a client gets of a server that sends `bytes` and ends, through a proxy with the given faults. */
async function download(
  bytes: Buffer,
  faults: ConnectionFaults,
  whenReceived?: (total: number, socket: Socket) => void,
) {
  const target = await listen((socket) => socket.on('error', () => undefined).end(bytes));
  const proxy = await proxied(target, faults);
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

  it.each([
    [{ at: 0, count: 1 }],
    [{ at: 65_000, count: 140_000 }],
    [{ at: 299_990, count: 10 }],
    [{ at: 299_990, count: 1_000 }],
  ])('drops %j and nothing else', async (drop) => {
    const { data } = await download(BYTES, { toClient: { drop } });
    const expected = Buffer.concat([BYTES.subarray(0, drop.at), BYTES.subarray(drop.at + drop.count)]);
    expect(data.equals(expected)).toBe(true);
  });

  it.each([[{ at: 0, count: 1 }], [{ at: 65_000, count: 140_000 }], [{ at: 299_990, count: 10 }]])(
    'replays %j right after it has passed',
    async (replay) => {
      const { data } = await download(BYTES, { toClient: { replay } });
      const end = replay.at + replay.count;
      expect(data.equals(Buffer.concat([BYTES.subarray(0, end), BYTES.subarray(replay.at)]))).toBe(true);
    },
  );

  it.each([0, 100_000])('resets both ends after %i bytes', async (resetAtByte) => {
    const errors: Record<string, string | undefined> = {};
    const target = await listen((socket) => {
      socket.on('error', (error: NodeJS.ErrnoException) => (errors['server'] = error.code));
      socket.write(BYTES);
    });
    const proxy = await proxied(target, { toClient: { resetAtByte } });
    const socket = connect(proxy.address);
    const received: Buffer[] = [];
    socket.on('data', (chunk: Buffer) => received.push(chunk));
    socket.on('error', (error: NodeJS.ErrnoException) => (errors['client'] = error.code));
    await new Promise((resolve) => socket.once('close', resolve));
    await expect.poll(() => errors['server']).toBe('ECONNRESET');
    // Together with data it looks like an end to Node.
    if (resetAtByte === 0) expect(errors['client']).toBe('ECONNRESET');
    const data = Buffer.concat(received);
    expect(data.length).toBeLessThanOrEqual(resetAtByte);
    expect(data.equals(BYTES.subarray(0, data.length))).toBe(true);
    await expect.poll(() => proxy.connectionsOpen).toBe(0);
  });

  it('leaves one end with a connection that the other has lost', async () => {
    let ofServer: Socket | null = null;
    const target = await listen((socket) => {
      ofServer = socket;
      socket.on('error', () => undefined).write(BYTES);
    });
    const proxy = await proxied(target, { toClient: { halfOpenAtByte: 70_001 } });
    const socket = connect(proxy.address);
    const received: Buffer[] = [];
    for await (const chunk of socket) received.push(chunk as Buffer);
    expect(Buffer.concat(received).equals(BYTES.subarray(0, 70_001))).toBe(true);
    socket.destroy();
    await expect.poll(() => socket.closed).toBe(true);
    // Nobody told the server, and what it sends is neither refused nor taken.
    const server = ofServer as Socket | null;
    server?.write(BYTES);
    expect([server?.readable, server?.writable, server?.destroyed]).toEqual([true, true, false]);
    expect(proxy.connectionsOpen).toBe(1);
  });

  it('passes nothing while it is frozen, in either direction, and all of it afterwards', async () => {
    const toServer: Buffer[] = [];
    const target = await listen((socket) => {
      socket.on('data', (chunk: Buffer) => toServer.push(chunk));
      socket.write('from the server');
    });
    const proxy = await proxied(target, {});
    proxy.freeze();
    const socket = connect(proxy.address);
    const toClient: Buffer[] = [];
    socket.on('data', (chunk: Buffer) => toClient.push(chunk));
    await new Promise<void>((resolve) => socket.write('from the client', () => resolve()));
    // The same bytes on a way without the proxy arrive meanwhile.
    const direct = connect(target.port, target.host);
    await new Promise((resolve) => direct.once('data', resolve));
    direct.destroy();
    expect([toClient, toServer]).toEqual([[], []]);
    proxy.thaw();
    await expect.poll(() => Buffer.concat(toClient).toString()).toBe('from the server');
    await expect.poll(() => Buffer.concat(toServer).toString()).toBe('from the client');
    socket.destroy();
  });

  it('passes a half-closed connection as such', async () => {
    const target = await listen((socket) => {
      const received: Buffer[] = [];
      socket.on('data', (chunk: Buffer) => received.push(chunk));
      // The answer comes after the client's end of the connection.
      socket.on('end', () => socket.end(`got ${Buffer.concat(received).length} bytes`));
    });
    const proxy = await proxied(target, {});
    const socket = connect({ ...proxy.address, allowHalfOpen: true });
    socket.end(BYTES);
    let answer = '';
    for await (const chunk of socket) answer += String(chunk);
    expect(answer).toBe('got 300000 bytes');
  });

  it('does the same whatever pieces the bytes come in', () => {
    const random = new Random(7);
    for (let round = 0; round < 200; round++) {
      const range = () => ({ at: random.integer(0, 90), count: random.integer(1, 40) });
      const faults: Faults = {
        ...(random.integer(0, 1) === 0 ? { corruptByte: random.integer(0, 99) } : {}),
        ...(random.integer(0, 1) === 0 ? { drop: range() } : { replay: range() }),
        ...(random.integer(0, 1) === 0 ? { cutAtByte: random.integer(0, 110) } : {}),
      };
      const pieces: Buffer[] = [];
      for (let at = 0; at < 100;) {
        const size = random.integer(1, 30);
        pieces.push(BYTES.subarray(at, Math.min(100, at + size)));
        at += size;
      }
      const through = (parts: readonly Buffer[]): Buffer => {
        const stream = new FaultyStream(faults);
        const passed: Buffer[] = [];
        for (const part of parts) {
          const { bytes, end } = stream.next(part);
          passed.push(bytes);
          if (end !== null) break;
        }
        return Buffer.concat(passed);
      };
      const whole = through([BYTES.subarray(0, 100)]);
      expect(through(pieces).equals(whole), JSON.stringify({ round, faults })).toBe(true);
    }
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

describe('a connection that is held at a byte', () => {
  /** A client of a server that sends BYTES, where the proxy holds the answer at that byte. */
  async function held(at: number) {
    const target = await listen((socket) => socket.on('error', () => undefined).end(BYTES));
    let direction: Direction | null = null;
    let reached: Promise<void> = Promise.resolve();
    const proxy = await FaultProxy.listen({
      target,
      faults: (_index, connection) => {
        direction = connection.toClient;
        reached = connection.toClient.holdAt(at);
        return {};
      },
    });
    cleanups.push(() => proxy.close());
    const socket = connect(proxy.address);
    const received: Buffer[] = [];
    socket.on('error', () => undefined);
    socket.on('data', (chunk) => received.push(chunk));
    const closed = new Promise<void>((resolve) => socket.once('close', () => resolve()));
    await expect.poll(() => direction !== null).toBe(true);
    await reached;
    const data = (): Buffer => Buffer.concat(received);
    await expect.poll(() => data().length).toBe(at);
    return { direction: direction as unknown as Direction, data, closed };
  }

  it('has passed every byte before it, keeps what comes after it, and goes on when it is let go', async () => {
    const { direction, data, closed } = await held(123_456);
    await expect.poll(() => direction.waiting).toBe(BYTES.length - 123_456);
    expect(data().length).toBe(123_456);
    direction.release();
    await closed;
    expect(data().equals(BYTES)).toBe(true);
  });

  it('can be let pass some more bytes, and be held again', async () => {
    const { direction, data, closed } = await held(1_000);
    await direction.holdAt(2_000);
    await expect.poll(() => data().length).toBe(2_000);
    direction.release();
    await closed;
    expect(data().equals(BYTES)).toBe(true);
  });

  it('breaks exactly there', async () => {
    const { direction, data, closed } = await held(123_456);
    direction.release({ cutAtByte: direction.passed });
    await closed;
    expect(data().equals(BYTES.subarray(0, 123_456))).toBe(true);
  });

  it('has the faults that it is let go with from there on', async () => {
    const { direction, data, closed } = await held(5_000);
    direction.release({ corruptByte: 5_010 });
    await closed;
    const expected = Buffer.from(BYTES);
    expected[5_010] = (BYTES[5_010] ?? 0) ^ 1;
    expect(data().equals(expected)).toBe(true);
  });
});
