import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { fileURLToPath } from 'node:url';
import { FaultProxy, TestAuthority, type TestIdentity } from '@muser/testing';
import { PeerClient } from '@muser/transport';
import type { FarEndPorts, FarEndSetup } from './far-end.js';
import type { Link } from './link.js';
import type { TwoMachines } from './two-machines.js';

const FAR_END = fileURLToPath(new URL('far-end.js', import.meta.url));
/** What is copied takes about so long at the link's rate. */
const COPY_SECONDS = 0.8;
const FRAME_BYTES = 1 << 20;
const ECHOES = 15;
/** At the start the queue's burst passes at once; more above its rate than this, and the link is not what it is said to be. */
const TOLERANCE = 1.15;
const LIMIT_MS = 60_000;
const COPY = Buffer.from('C');
const ECHO = Buffer.from('e');

interface Address {
  readonly host: string;
  readonly port: number;
}

export interface LinkFigures {
  /** Of a raw copy from the GB10's side to the Mac's, without TLS. */
  readonly bitsPerSecond: number;
  /** The same through the proxy that adds the delay. */
  readonly delayedBitsPerSecond: number;
  /** Of frames as a producer sends them, by gRPC over TLS, through that proxy, on a connection that is there already. */
  readonly framesBitsPerSecond: number;
  /** Median of a byte there and back through the proxy. */
  readonly roundTripMs: number;
}

/** Measures the link as it is. @throws Error when it is faster than it was made */
export async function measureLink(machines: TwoMachines, link: Link): Promise<LinkFigures> {
  const authority = await TestAuthority.create();
  const [producer, decoder] = await Promise.all([authority.identity('producer'), authority.identity('decoder')]);
  const bytes = Math.round((link.bitsPerSecond / 8) * COPY_SECONDS);
  const [command = '', ...args] = [...machines.on('gb10'), process.execPath, FAR_END];
  const farEnd = spawn(command, args, { stdio: ['ignore', 'inherit', 'inherit', 'ipc'], serialization: 'advanced' });
  try {
    const host = machines.gb10Address;
    const ports = await portsOf(farEnd, { host, bytes, ...withoutKey(producer) });
    const raw = { host, port: ports.raw };
    const bitsPerSecond = await copy(raw, bytes);
    if (bitsPerSecond > TOLERANCE * link.bitsPerSecond) {
      throw new Error(
        `a link of ${link.bitsPerSecond} bit/s copies ${Math.round(bitsPerSecond)} bit/s: it is not shaped`,
      );
    }
    const { roundTripMs, delayedBitsPerSecond } = await throughProxy(raw, link, async ({ address }) => ({
      roundTripMs: await roundTrip(address),
      delayedBitsPerSecond: await copy(address, bytes),
    }));
    const framesBitsPerSecond = await throughProxy({ host, port: ports.frames }, link, ({ target }) =>
      copyFrames(target, { decoder, producerId: producer.nodeId, count: Math.ceil(bytes / FRAME_BYTES) }),
    );
    return { bitsPerSecond, delayedBitsPerSecond, framesBitsPerSecond, roundTripMs };
  } finally {
    farEnd.kill('SIGKILL');
  }
}

/**
 * On the Mac's side, so that what comes from the GB10 has passed the cable before it waits: the queue before the cable
 * stays as short as it would be, and the sender feels it when the link is slow.
 */
export function delayProxy(target: Address, link: Link): Promise<FaultProxy> {
  const delay = link.roundTripMs === 0 ? {} : { delayMs: link.roundTripMs / 2 };
  return FaultProxy.listen({ target, faults: () => ({ toServer: delay, toClient: delay }) });
}

async function throughProxy<T>(target: Address, link: Link, measure: (proxy: FaultProxy) => Promise<T>): Promise<T> {
  const proxy = await delayProxy(target, link);
  try {
    return await measure(proxy);
  } finally {
    await proxy.close();
  }
}

async function portsOf(farEnd: ChildProcess, setup: FarEndSetup): Promise<FarEndPorts> {
  farEnd.send(setup);
  const [ports] = (await once(farEnd, 'message', { signal: AbortSignal.timeout(LIMIT_MS) })) as [FarEndPorts];
  return ports;
}

function withoutKey({ signingKey: _, signingSeed, ...identity }: TestIdentity): Omit<FarEndSetup, 'host' | 'bytes'> {
  return { identity, signingSeed };
}

async function copy(target: Address, bytes: number): Promise<number> {
  const socket = await open(target);
  const startedAt = performance.now();
  socket.write(COPY);
  let received = 0;
  for await (const data of socket) received += (data as Buffer).length;
  if (received !== bytes) throw new Error(`a raw copy of ${bytes} bytes brought ${received}`);
  return (8_000 * received) / (performance.now() - startedAt);
}

async function copyFrames(
  target: string,
  { decoder, producerId, count }: { decoder: TestIdentity; producerId: string; count: number },
): Promise<number> {
  const client = PeerClient.connect({ identity: decoder, target, expect: { role: 'producer', nodeId: producerId } });
  const read = async (frames: number): Promise<number> => {
    const request = Buffer.alloc(4);
    request.writeUInt32LE(frames);
    let received = 0;
    for await (const frame of client.prefill(request, { deadlineMs: LIMIT_MS })) received += frame.length;
    return received;
  };
  try {
    await read(1);
    const startedAt = performance.now();
    const received = await read(count);
    return (8_000 * received) / (performance.now() - startedAt);
  } finally {
    client.close();
  }
}

async function roundTrip(target: Address): Promise<number> {
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

async function open(target: Address): Promise<Socket> {
  const socket = connect(target);
  socket.setNoDelay(true);
  socket.setTimeout(LIMIT_MS, () => socket.destroy(new Error('the raw copy stands still')));
  await once(socket, 'connect');
  return socket;
}
