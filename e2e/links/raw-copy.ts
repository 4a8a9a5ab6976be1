import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { FaultProxy } from '@muser/testing';
import type { Link } from './link.js';
import type { TwoMachines } from './two-machines.js';

const SENDER = fileURLToPath(new URL('raw-sender.js', import.meta.url));
/** What is copied takes about so long at the link's rate. */
const COPY_SECONDS = 0.8;
const ECHOES = 15;
/** At the start the queue's burst passes at once; more above its rate than this, and the link is not what it is said to be. */
const TOLERANCE = 1.15;
const LIMIT_MS = 60_000;
const COPY = Buffer.from('C');
const ECHO = Buffer.from('e');

export interface LinkFigures {
  /** Of a raw copy from the GB10's side to the Mac's, without TLS. */
  readonly bitsPerSecond: number;
  /** The same through the proxy that adds the delay. */
  readonly delayedBitsPerSecond: number;
  /** Median of a byte there and back through the proxy. */
  readonly roundTripMs: number;
}

/** Measures the link as it is. @throws Error when it is faster than it was made */
export async function measureLink(machines: TwoMachines, link: Link): Promise<LinkFigures> {
  const bytes = Math.round((link.bitsPerSecond / 8) * COPY_SECONDS);
  const [command = '', ...args] = [...machines.on('gb10'), process.execPath, SENDER];
  const sender = spawn(command, [...args, machines.gb10Address, String(bytes)], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  try {
    const target = { host: machines.gb10Address, port: await portOf(sender) };
    const bitsPerSecond = await copy(target, bytes);
    const proxy = await delayProxy(target, link);
    try {
      const figures = {
        bitsPerSecond,
        roundTripMs: await roundTrip(proxy.address),
        delayedBitsPerSecond: await copy(proxy.address, bytes),
      };
      if (bitsPerSecond > TOLERANCE * link.bitsPerSecond) {
        throw new Error(
          `a link of ${link.bitsPerSecond} bit/s copies ${Math.round(bitsPerSecond)} bit/s: it is not shaped`,
        );
      }
      return figures;
    } finally {
      await proxy.close();
    }
  } finally {
    sender.kill('SIGKILL');
  }
}

/**
 * On the Mac's side, so that what comes from the GB10 has passed the cable before it waits: the queue before the cable
 * stays as short as it would be, and the sender feels it when the link is slow.
 */
export function delayProxy(target: { host: string; port: number }, link: Link): Promise<FaultProxy> {
  const delay = link.roundTripMs === 0 ? {} : { delayMs: link.roundTripMs / 2 };
  return FaultProxy.listen({ target, faults: () => ({ toServer: delay, toClient: delay }) });
}

async function portOf(sender: ChildProcess): Promise<number> {
  const lines = createInterface({ input: sender.stdout as NodeJS.ReadableStream });
  const [line] = (await once(lines, 'line', { signal: AbortSignal.timeout(LIMIT_MS) })) as [string];
  return Number(line);
}

async function copy(target: { host: string; port: number }, bytes: number): Promise<number> {
  const socket = await open(target);
  const startedAt = performance.now();
  socket.write(COPY);
  let received = 0;
  for await (const data of socket) received += (data as Buffer).length;
  if (received !== bytes) throw new Error(`a raw copy of ${bytes} bytes brought ${received}`);
  return (8_000 * received) / (performance.now() - startedAt);
}

async function roundTrip(target: { host: string; port: number }): Promise<number> {
  const socket = await open(target);
  const times: number[] = [];
  for (let echo = 0; echo < ECHOES; echo += 1) {
    const startedAt = performance.now();
    socket.write(ECHO);
    await once(socket, 'data');
    times.push(performance.now() - startedAt);
  }
  socket.destroy();
  return times.sort((a, b) => a - b)[ECHOES >> 1] ?? 0;
}

async function open(target: { host: string; port: number }): Promise<Socket> {
  const socket = connect(target);
  socket.setNoDelay(true);
  socket.setTimeout(LIMIT_MS, () => socket.destroy(new Error('the raw copy stands still')));
  await once(socket, 'connect');
  return socket;
}
