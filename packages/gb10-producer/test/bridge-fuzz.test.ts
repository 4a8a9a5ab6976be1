// Thousands of damaged and misplaced frames on both sockets: nothing crashes, hangs or grows.
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { connect, type Socket } from 'node:net';

import { MuserError } from '@muser/protocol';
import { createLogger } from '@muser/service-kit';
import { mutated, Random } from '@muser/testing';
import { describe, expect, it } from 'vitest';

import type { FrameConnection } from '../src/bridge/connection.js';
import { encodeFrame } from '../src/bridge/frames.js';
import type { Link, Side } from '../src/bridge/schema.js';
import { SocketServer } from '../src/bridge/socket-server.js';
import { consume, ready, replaced, startRun, wrongRow } from './support/fake-runs.js';
import { openFake } from './support/fake-vllm.js';
import { until } from './support/test-bed.js';

const vectors = (
  JSON.parse(readFileSync(new URL('../../../proto/vectors/bridge.json', import.meta.url), 'utf8')) as {
    valid: { link: Link; from: Side; frame: string }[];
  }
).valid;
const FRAMES: Readonly<Record<Link, Buffer[]>> = {
  control: vectors.filter(({ link }) => link === 'control').map(({ frame }) => Buffer.from(frame, 'hex')),
  data: vectors.filter(({ link }) => link === 'data').map(({ frame }) => Buffer.from(frame, 'hex')),
};

const CONNECTIONS = 400;
const TOGETHER = 20;
const GROWTH_BYTES = 16 << 20;

/** Three of four frames are damaged. */
function damaged(random: Random, link: Link): Buffer {
  const frame = random.pick(FRAMES[link]);
  return random.next() < 0.25 ? frame : mutated(random, frame, FRAMES[link]);
}

/** What one stranger or worker writes: mostly after the right hello, always some frames, some of them damaged. */
function stream(random: Random, link: Link, secret: string): Buffer {
  const more = link === 'control' ? { version: '1' } : { rank: 0, layers: [0, 1], heads: [0, 1] };
  const hello = encodeFrame('hello', { role: link, secret, pid: 1, ...more });
  const frames = Array.from({ length: random.integer(1, 6) }, () => damaged(random, link));
  return Buffer.concat(random.next() < 0.8 ? [hello, ...frames] : frames);
}

async function speak(random: Random, link: Link, server: SocketServer): Promise<void> {
  const socket: Socket = connect(link === 'control' ? server.controlSocket : server.dataSocket);
  socket.on('error', () => undefined).resume();
  const closed = once(socket, 'close');
  const bytes = stream(random, link, server.secret);
  for (let at = 0; at < bytes.length;) {
    const end = at + random.integer(1, bytes.length);
    socket.write(bytes.subarray(at, end));
    at = end;
  }
  if (random.next() < 0.5) socket.end();
  else setTimeout(() => socket.destroy(), random.integer(0, 3));
  await closed;
}

describe('damaged frames', () => {
  // fault: memory-outside-heap
  it.each([1, 2, 3])('on both sockets leave nothing behind (seed %i)', async (seed) => {
    const random = new Random(seed);
    let open = 0;
    let admitted = 0;
    const admit = (connection: FrameConnection): void => {
      admitted += 1;
      open += 1;
      connection.handTo(() => undefined);
      void connection.closed.then(() => (open -= 1));
    };
    const server = await SocketServer.listen({ onControl: admit, onData: admit }, createLogger('test', 'silent'));
    const before = process.memoryUsage();
    for (let round = 0; round < CONNECTIONS / TOGETHER; round += 1) {
      const speakers = Array.from({ length: TOGETHER }, () => speak(random, random.pick(['control', 'data']), server));
      await Promise.all(speakers);
    }
    await until(() => open === 0);
    expect(admitted).toBeGreaterThan(CONNECTIONS / 2);
    const grown = process.memoryUsage().arrayBuffers - before.arrayBuffers;
    expect(grown).toBeLessThan(GROWTH_BYTES);
    await server.close();
  });
});

describe.concurrent('a worker whose frames are damaged or make no sense', () => {
  it.for([1, 2, 3, 4, 5, 6])(
    '(seed %i) fails requests, and nothing else',
    { timeout: 120_000 },
    async (seed, { expect }) => {
      const settings: Record<string, unknown> = {};
      const restartPausesMs = new Array<number>(1_000).fill(0);
      const vllm = await openFake(settings, { hangLimitMs: 1_500, startLimitMs: 5_000, restartPausesMs });
      try {
        const [first = 0] = vllm.workerPids;
        settings['noise'] = [seed, 0.01 * seed];
        process.kill(first, 'SIGKILL');
        await replaced(vllm, first);
        let failed = 0;
        for (let nth = 0; nth < 10; nth += 1) {
          await ready(vllm);
          const outcome = await consume(startRun(vllm, 100 * seed + nth, 2000, deadline())).catch(
            (error: unknown) => error,
          );
          if (typeof outcome === 'number') expect(outcome).toBe(1999);
          else expect(outcome).toBeInstanceOf(MuserError);
          failed += typeof outcome === 'number' ? 0 : 1;
          await until(() => vllm.stats().activePrefills === 0);
          expect(vllm.stats()).toEqual({ activePrefills: 0, reservedTokens: 0, unreleasedChunks: 0 });
        }
        expect(failed, 'the noise did nothing').toBeGreaterThan(0);
        delete settings['noise'];
        await ready(vllm);
        const [last = 0] = vllm.workerPids;
        process.kill(last, 'SIGKILL');
        await replaced(vllm, last);
        expect(await wrongRow(vllm, 3)).toBeNull();
      } finally {
        await vllm.close();
      }
    },
  );
});

/** Every request has one, from its decoder. */
function deadline(): AbortSignal {
  const controller = new AbortController();
  setTimeout(() => controller.abort(new MuserError('DEADLINE_EXCEEDED', 'too late')), 3_000).unref();
  return controller.signal;
}
