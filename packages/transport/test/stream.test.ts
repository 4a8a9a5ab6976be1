import { createHash } from 'node:crypto';
import { MAX_MESSAGE_BYTES, MuserError, type NodeStatus, type ProducerList } from '@muser/protocol';
import { describe, expect, it } from 'vitest';
import { addNodeService, addPlacementService, createServer, PeerListener, type PeerClient } from '../src/index.js';
import {
  aborted,
  afterTest,
  authority,
  connect,
  decoder,
  deferred,
  expectCode,
  MIB,
  producer,
  readAll,
  startProducer,
} from './harness.js';

function frames(count: number, bytes: number): Buffer[] {
  return Array.from({ length: count }, (_, index) => Buffer.alloc(bytes, index + 1));
}

const digest = (parts: Buffer[]) => createHash('sha256').update(Buffer.concat(parts)).digest('hex');

/** Sends one frame, then waits for the end of the call. */
function endless() {
  const ended = deferred<unknown>();
  const handler = async (call: { send: (frame: Buffer) => Promise<void>; signal: AbortSignal }) => {
    await call.send(Buffer.from('frame'));
    ended.resolve(await aborted(call.signal));
  };
  return { handler, ended: ended.promise };
}

describe('a stream', () => {
  // fault: receive-limit
  it('carries every frame in order, byte for byte, of any size up to the limit', async () => {
    const sent = [Buffer.alloc(0), ...frames(40, 1), ...frames(30, MIB), Buffer.alloc(MAX_MESSAGE_BYTES, 7)];
    const { target } = await startProducer(async (call) => {
      for (const frame of sent) await call.send(frame);
    });
    const received = await readAll(connect(target).prefill(Buffer.alloc(0)));
    expect(received.map((frame) => frame.length)).toEqual(sent.map((frame) => frame.length));
    expect(digest(received)).toBe(digest(sent));
  });

  it('runs beside others on one connection', async () => {
    const { target } = await startProducer(async (call) => {
      for (const frame of frames(12, MIB)) await call.send(Buffer.concat([call.requestBytes, frame]));
    });
    const client = connect(target);
    const names = ['a', 'b', 'c', 'd', 'e', 'f'];
    const results = await Promise.all(names.map((name) => readAll(client.prefill(Buffer.from(name)))));
    for (const [index, received] of results.entries()) {
      expect(received).toHaveLength(12);
      expect(new Set(received.map((frame) => frame.toString('latin1', 0, 1)))).toEqual(new Set([names[index]]));
    }
  });

  it('delivers what was sent before an error, then the error with its code', async () => {
    const { target } = await startProducer(async (call) => {
      await call.send(Buffer.from('frame'));
      throw new MuserError('QUEUE_FULL', '16 requests are waiting');
    });
    const received: Buffer[] = [];
    const reading = (async () => {
      for await (const frame of connect(target).prefill(Buffer.alloc(0))) received.push(frame);
    })();
    const error = await expectCode(reading, 'QUEUE_FULL');
    expect(error).toMatchObject({ message: '16 requests are waiting', retryable: true });
    expect(received).toHaveLength(1);
  });

  it('tells nothing about an unexpected error but that it happened', async () => {
    const { target } = await startProducer(() => Promise.reject(new Error('prompt: secret')));
    const error = await expectCode(connect(target).prefill(Buffer.alloc(0)), 'INTERNAL');
    expect(error.message).not.toContain('secret');
  });

  const unused = {
    setRevoked: () => Promise.reject(new MuserError('UNAVAILABLE', 'not here')),
    requestCertificate: () => Promise.reject(new MuserError('UNAVAILABLE', 'not here')),
    installCertificate: () => Promise.reject(new MuserError('UNAVAILABLE', 'not here')),
  };

  it('works over IPv6 and by name', async () => {
    const server = createServer();
    addNodeService(server, {
      authorize: () => undefined,
      watch: async () => undefined,
      setPaused: async () => undefined,
      ...unused,
    });
    const listener = await PeerListener.listen({ identity: producer, host: '::', port: 0, server });
    afterTest(() => listener.close(0));
    const request = { protocolVersion: 1, intervalMs: 1_000 } as const;
    for (const host of ['[::1]', 'localhost', '127.0.0.1']) {
      for await (const _ of connect(`${host}:${listener.address.port}`).watchNode(request))
        throw new Error('no status');
    }
  });
});

describe('a message over the limit', () => {
  it('is refused by the sender as an error of its own', async () => {
    const errors: unknown[] = [];
    const { target } = await startProducer(async (call) => {
      await call.send(Buffer.alloc(MAX_MESSAGE_BYTES + 1)).catch((error: unknown) => errors.push(error));
      await call.send(Buffer.from('still fine'));
    });
    expect(await readAll(connect(target).prefill(Buffer.alloc(0)))).toHaveLength(1);
    expect(errors).toEqual([expect.objectContaining({ code: 'MESSAGE_TOO_LARGE' })]);
  });

  // promise: A request over the limit never reaches the code that handles it.
  it('as a request never reaches the handler', async () => {
    const { target, calls } = await startProducer(async () => undefined);
    await expectCode(connect(target).prefill(Buffer.alloc(MAX_MESSAGE_BYTES + 1)), 'MESSAGE_TOO_LARGE');
    expect(calls).toHaveLength(0);
  });
});

describe('the end of a stream before its time', () => {
  it('by leaving the loop reaches the server', async () => {
    const { handler, ended } = endless();
    const { target } = await startProducer(handler);
    for await (const _ of connect(target).prefill(Buffer.alloc(0))) break;
    expect(await ended).toMatchObject({ code: 'CANCELLED' });
  });

  it('by the signal reaches the server, also while the reader waits', async () => {
    const { handler, ended } = endless();
    const { target, calls } = await startProducer(handler);
    const stop = new AbortController();
    const reading = expectCode(connect(target).prefill(Buffer.alloc(0), { signal: stop.signal }), 'CANCELLED');
    await expect.poll(() => calls.length).toBe(1);
    stop.abort();
    await reading;
    expect(await ended).toMatchObject({ code: 'CANCELLED' });
  });

  it('by the signal happens also while the reader is busy', async () => {
    const { handler, ended } = endless();
    const { target } = await startProducer(handler);
    const stop = new AbortController();
    const iterator = connect(target).prefill(Buffer.alloc(0), { signal: stop.signal })[Symbol.asyncIterator]();
    expect((await iterator.next()).done).toBe(false);
    stop.abort(new MuserError('CANCELLED', 'the user has left'));
    expect(await ended).toMatchObject({ code: 'CANCELLED' });
    await expect(iterator.next()).rejects.toMatchObject({ message: 'the user has left' });
  });

  it('does not even start with a signal that is aborted already', async () => {
    const { target, calls } = await startProducer(async () => undefined);
    await expectCode(connect(target).prefill(Buffer.alloc(0), { signal: AbortSignal.abort() }), 'CANCELLED');
    expect(calls).toHaveLength(0);
  });

  it('by closing the client reaches the server', async () => {
    const { handler, ended } = endless();
    const { target, calls } = await startProducer(handler);
    const client = connect(target);
    const reading = expectCode(client.prefill(Buffer.alloc(0)), 'CANCELLED');
    await expect.poll(() => calls.length).toBe(1);
    client.close();
    await reading;
    await ended;
    await expectCode(client.prefill(Buffer.alloc(0)), 'CANCELLED');
  });

  it('by the deadline happens on both sides', async () => {
    const { handler, ended } = endless();
    const { target } = await startProducer(handler);
    await expectCode(connect(target).prefill(Buffer.alloc(0), { deadlineMs: 300 }), 'DEADLINE_EXCEEDED');
    expect(await ended).toMatchObject({ code: expect.stringMatching(/DEADLINE_EXCEEDED|CANCELLED/) as string });
  });

  it('by silence is STALLED, and reaches the server', async () => {
    const { handler, ended } = endless();
    const { target } = await startProducer(handler);
    await expectCode(connect(target).prefill(Buffer.alloc(0), { idleTimeoutMs: 200 }), 'STALLED');
    expect(await ended).toMatchObject({ code: 'CANCELLED' });
  });

  it('does not come from a reader that takes its time', async () => {
    const { target } = await startProducer(async (call) => {
      for (const frame of frames(3, 10)) await call.send(frame);
    });
    let count = 0;
    for await (const _ of connect(target).prefill(Buffer.alloc(0), { idleTimeoutMs: 1_500 })) {
      count += 1;
      await new Promise((resolve) => setTimeout(resolve, 1_700));
    }
    expect(count).toBe(3);
  });

  it('by closing the listener lets a short one finish and breaks a long one', async () => {
    const { handler } = endless();
    const long = await startProducer(handler);
    const reading = expectCode(connect(long.target).prefill(Buffer.alloc(0)), 'PEER_UNREACHABLE');
    await expect.poll(() => long.calls.length).toBe(1);
    await long.listener.close(200);
    await reading;

    const finish = deferred();
    const short = await startProducer(async (call) => {
      await call.send(Buffer.from('first'));
      await finish.promise;
      await call.send(Buffer.from('last'));
    });
    const whole = readAll(connect(short.target).prefill(Buffer.alloc(0)));
    await expect.poll(() => short.calls.length).toBe(1);
    const closed = short.listener.close(30_000);
    finish.resolve();
    expect(await whole).toHaveLength(2);
    await closed;
  });
});

describe('watching', () => {
  const model = { fingerprint: Buffer.alloc(32, 1), modelDigest: Buffer.alloc(32, 2), name: 'muse-nano' };

  it('delivers decoded states of a node, one after another', async () => {
    const server = createServer();
    const status = (queueLength: number): NodeStatus => ({
      nodeId: producer.nodeId,
      state: 'ready',
      model,
      geometry: {
        layers: ['window', 'global'],
        kvHeads: 2,
        headDimension: 64,
        windowTokens: 512,
        ropeBase: 500_000,
        ropeLayers: 'window',
        vocabularySize: 4_096,
      },
      maxPromptTokens: 16_384,
      queueLength,
      activeTransfers: 0,
      prefillTokensPerSecond: 0,
      backend: 'llama',
      version: '0.1.0',
      sentAtMs: 1_700_000_000_000,
      reason: '',
      unloaded: false,
    });
    addNodeService(server, {
      authorize: () => undefined,
      watch: async (call) => {
        for (let count = 0; count < 3; count += 1) await call.send(status(count + call.request.intervalMs));
      },
      setPaused: async (call) => {
        await call.send(status(call.request.deadlineMs));
        if (call.request.paused) throw new MuserError('DEADLINE_EXCEEDED', 'not paused yet');
      },
      setRevoked: ({ request: { version, nodeIds } }) => Promise.resolve({ version: version + nodeIds.length }),
      requestCertificate: () => Promise.reject(new MuserError('UNAVAILABLE', 'not now')),
      installCertificate: ({ request }) =>
        Promise.resolve({ serial: Buffer.from(request.certificate).toString('hex').toUpperCase() }),
    });
    const listener = await PeerListener.listen({ identity: producer, host: '127.0.0.1', port: 0, server });
    afterTest(() => listener.close(0));
    const client = connect(`127.0.0.1:${listener.address.port}`);
    const received: number[] = [];
    for await (const update of client.watchNode({ protocolVersion: 1, intervalMs: 500 })) {
      expect(update).toEqual(status(update.queueLength));
      received.push(update.queueLength);
    }
    expect(received).toEqual([500, 501, 502]);
    const order = { protocolVersion: 1, paused: false, cancelRunning: false, deadlineMs: 7 };
    for await (const update of client.setPaused(order)) expect(update).toEqual(status(7));
    await expectCode(client.setPaused({ ...order, paused: true }), 'DEADLINE_EXCEEDED');
    const revoked = { protocolVersion: 1, version: 5, nodeIds: [producer.nodeId, decoder.nodeId] };
    expect(await client.setRevoked(revoked)).toEqual({ version: 7 });
    await expectCode(client.requestCertificate({ protocolVersion: 1 }), 'UNAVAILABLE');
    const certificate = Buffer.from('c0ffee', 'hex');
    expect(await client.installCertificate({ protocolVersion: 1, certificate })).toEqual({ serial: 'C0FFEE' });
    await expectCode(client.prefill(Buffer.alloc(0)), 'PROTOCOL_VERSION');
  });

  it('delivers the list of producers until the watcher leaves', async () => {
    const coordinator = await authority.identity('coordinator');
    const server = createServer();
    const left = deferred();
    const list: ProducerList = { coordinatorTimeMs: 1_700_000_000_000, producers: [], renewOrder: '', unavailable: [] };
    addPlacementService(server, {
      authorize: (peer) => {
        if (peer.role !== 'decoder') throw new MuserError('PERMISSION_DENIED', 'only decoders may ask');
      },
      watch: async (call) => {
        expect(call.request.name).toBe('mac');
        await call.send(list);
        await aborted(call.signal);
        left.resolve();
      },
      renewCertificate: ({ request }) => Promise.resolve({ protocolVersion: 1, certificate: request.csr }),
    });
    const listener = await PeerListener.listen({ identity: coordinator, host: '127.0.0.1', port: 0, server });
    afterTest(() => listener.close(0));
    const target = `127.0.0.1:${listener.address.port}`;
    const request = { protocolVersion: 1, model, name: 'mac' } as const;
    const open = (identity: typeof decoder): PeerClient =>
      connect(target, { identity, expect: { role: 'coordinator' } });
    for await (const update of open(decoder).watchProducers(request)) {
      expect(update).toEqual(list);
      break;
    }
    await left.promise;
    const refused = open(producer).watchProducers(request)[Symbol.asyncIterator]().next();
    await expectCode(refused, 'PERMISSION_DENIED');
  });
});
