import {
  Client,
  credentials,
  InterceptingCall,
  type Interceptor,
  Server,
  ServerCredentials,
  type ServerWritableStream,
} from '@grpc/grpc-js';
import { expect, it } from 'vitest';
import { ReceiveGate } from '../src/client/receive-gate.js';
import { ByteBudget, HANDOFF_SERVICE, PeerBudgets } from '../src/index.js';
import { afterTest, MIB, settled } from './harness.js';

const FRAMES = 12;
const CALL_BYTES = 4 * MIB;
const same = (message: Buffer): Buffer => message;

/** A server that sends as fast as it is read. */
async function startServer(): Promise<string> {
  const server = new Server();
  server.addService(HANDOFF_SERVICE, {
    Prefill: (call: ServerWritableStream<Buffer, Buffer>) => {
      for (let index = 0; index < FRAMES; index += 1) call.write(Buffer.alloc(MIB, index));
      call.end();
    },
  });
  const port = await new Promise<number>((resolve, reject) => {
    server.bindAsync('127.0.0.1:0', ServerCredentials.createInsecure(), (error, bound) =>
      error === null ? resolve(bound) : reject(error),
    );
  });
  afterTest(() => server.forceShutdown());
  return `127.0.0.1:${port}`;
}

// promise: What a decoder has received and not read yet is bounded for each transfer, each peer and the process.
// fault: memory-outside-heap
it('passes no more to readers than their peer and the process may hold, and nothing is lost', async () => {
  const client = new Client(await startServer(), credentials.createInsecure());
  afterTest(() => client.close());
  const budgets = new PeerBudgets({ processBytes: 10 * MIB, peerBytes: 6 * MIB });
  const calls = ['one', 'one', 'one', 'other', 'other', 'other'].map((peer) => {
    const gate = new ReceiveGate(new ByteBudget(CALL_BYTES, budgets.of(peer)));
    const options = { interceptors: [gate.interceptor] };
    const call = client.makeServerStreamRequest(HANDOFF_SERVICE.Prefill.path, same, same, Buffer.alloc(0), options);
    // From now on it reads ahead.
    call.on('readable', () => undefined).on('error', () => undefined);
    return { gate, call };
  });
  const waiting = (peer: string) => budgets.of(peer).usedBytes / MIB;
  // Each call holds a message at least, so that none waits for the others; beyond that their peer and the process decide.
  await expect.poll(() => budgets.usedBytes).toBeGreaterThan(0);
  expect(await settled(() => budgets.usedBytes / MIB)).toBe(10);
  expect(Math.max(waiting('one'), waiting('other'))).toBeLessThanOrEqual(6);
  expect(Math.min(waiting('one'), waiting('other'))).toBeGreaterThanOrEqual(3);

  const read = await Promise.all(
    calls.map(async ({ gate, call }) => {
      const frames: (number | undefined)[] = [];
      for await (const message of call as AsyncIterable<Buffer>) {
        frames.push(message[0]);
        gate.taken(message.length);
        expect(budgets.usedBytes).toBeLessThanOrEqual((10 + calls.length) * MIB);
      }
      gate.dispose();
      return frames;
    }),
  );
  for (const frames of read) expect(frames).toEqual(Array.from({ length: FRAMES }, (_, index) => index));
  expect(budgets.usedBytes).toBe(0);
});

// grpc-js may still have a message in its filters when a call is cancelled, and passes it on afterwards.
it('counts nothing for a reader that has left', async () => {
  const client = new Client(await startServer(), credentials.createInsecure());
  afterTest(() => client.close());
  const budget = new ByteBudget(64 * MIB);
  const late: Promise<void>[] = [];
  for (let round = 0; round < 20; round += 1) {
    const gate = new ReceiveGate(new ByteBudget(CALL_BYTES, budget));
    const passed = new Promise<void>((resolve) => {
      const leaving: Interceptor = (options, nextCall) =>
        new InterceptingCall(nextCall(options), {
          start: (metadata, _listener, next) =>
            next(metadata, {
              onReceiveMessage: (message: Buffer, passOn: (message: Buffer) => void) => {
                // The reader leaves while this message is on its way to the gate.
                call.cancel();
                gate.dispose();
                passOn(message);
                resolve();
              },
            }),
        });
      const options = { interceptors: [gate.interceptor, leaving] };
      const call = client.makeServerStreamRequest(HANDOFF_SERVICE.Prefill.path, same, same, Buffer.alloc(0), options);
      call.on('readable', () => undefined).on('error', () => undefined);
    });
    late.push(passed);
  }
  await Promise.all(late);
  expect(budget.usedBytes).toBe(0);
});
