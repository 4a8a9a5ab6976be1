import type { EventEmitter } from 'node:events';
import { TestAuthority, type TestIdentity } from '@muser/testing';
import { MuserError, type ErrorCode } from '@muser/protocol';
import { afterEach, expect } from 'vitest';
import {
  addHandoffService,
  createServer,
  PeerClient,
  PeerListener,
  type ConnectOptions,
  type HandoffHandlers,
  type PrefillCall,
} from '../src/index.js';

export const MIB = 1024 * 1024;

/** Keys are made once for each file; a CA that nobody here trusts stands beside them. */
export const authority = await TestAuthority.create();
export const strangers = await TestAuthority.create();
export const producer = await authority.identity('producer');
export const decoder = await authority.identity('decoder');

const cleanups: (() => unknown)[] = [];

/** Runs after the test, last registered first. */
export function afterTest(cleanup: () => unknown): void {
  cleanups.push(cleanup);
}

afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
  await expectNoSockets();
});

/** Leaks fail tests: every socket and listener must be gone, without waiting for garbage collection. */
async function expectNoSockets(): Promise<void> {
  const open = () => process.getActiveResourcesInfo().filter((name) => /TCP|TLS/.test(name));
  await expect.poll(open, { timeout: 5_000, interval: 10 }).toEqual([]);
}

export interface RunningProducer {
  listener: PeerListener;
  target: string;
  calls: PrefillCall[];
}

/** A producer with the given handler; every call is kept for inspection. */
export async function startProducer(
  prefill: HandoffHandlers['prefill'],
  options: { identity?: TestIdentity; authorize?: HandoffHandlers['authorize'] } = {},
): Promise<RunningProducer> {
  const server = createServer();
  const calls: PrefillCall[] = [];
  addHandoffService(server, {
    authorize: options.authorize ?? (() => undefined),
    prefill: (call) => {
      calls.push(call);
      return prefill(call);
    },
  });
  const identity = options.identity ?? producer;
  const listener = await PeerListener.listen({ identity, host: '127.0.0.1', port: 0, server });
  afterTest(() => listener.close(0));
  return { listener, target: `127.0.0.1:${listener.address.port}`, calls };
}

export function connect(target: string, options: Partial<ConnectOptions> = {}): PeerClient {
  const client = PeerClient.connect({
    identity: decoder,
    target,
    expect: { role: 'producer', nodeId: producer.nodeId },
    ...options,
  });
  afterTest(() => client.close());
  return client;
}

export async function readAll<T>(frames: AsyncIterable<T>): Promise<T[]> {
  const all: T[] = [];
  for await (const frame of frames) all.push(frame);
  return all;
}

/** The error that reading ends with. */
export async function failureOf(work: Promise<unknown> | AsyncIterable<unknown>): Promise<MuserError> {
  const settled = await Promise.allSettled([Symbol.asyncIterator in work ? readAll(work) : work]);
  const [result] = settled;
  if (result.status === 'fulfilled') throw new Error('it should have failed');
  expect(result.reason).toBeInstanceOf(MuserError);
  return result.reason as MuserError;
}

export async function expectCode(
  work: Promise<unknown> | AsyncIterable<unknown>,
  code: ErrorCode,
): Promise<MuserError> {
  const error = await failureOf(work);
  expect(error.code, error.message).toBe(code);
  return error;
}

/** A promise with its handles outside. */
export function deferred<T = void>(): { promise: Promise<T>; resolve: (value: T) => void } {
  let resolve!: (value: T) => void;
  const promise = new Promise<T>((settle) => (resolve = settle));
  return { promise, resolve };
}

/** Resolves when the signal aborts, with its reason. */
export function aborted(signal: AbortSignal): Promise<unknown> {
  if (signal.aborted) return Promise.resolve(signal.reason);
  return new Promise((resolve) => signal.addEventListener('abort', () => resolve(signal.reason), { once: true }));
}

/** Resolves at the next event of that name; unlike events.once() an 'error' event does not matter. */
export function next(emitter: EventEmitter, event: string): Promise<void> {
  return new Promise((resolve) => emitter.once(event, () => resolve()));
}

/** Resolves when a figure has not changed for a while: whoever makes it grow is as far ahead as it can be. */
export async function settled(figure: () => number): Promise<number> {
  for (let last = -1; ;) {
    const now = figure();
    if (now === last) return now;
    last = now;
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
}
