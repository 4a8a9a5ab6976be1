import { connect as connectHttp2, type ClientHttp2Session, type ClientHttp2Stream } from 'node:http2';
import { connect as connectTls } from 'node:tls';
import { status } from '@grpc/grpc-js';
import { MAX_MESSAGE_BYTES } from '@muser/protocol';
import type { TestIdentity } from '@muser/testing';
import { describe, expect, it } from 'vitest';
import { MAX_CALLS_PER_PEER, MAX_PEER_REQUEST_BYTES, type PrefillCall } from '../src/index.js';
import { aborted, afterTest, authority, connect, decoder, expectCode, MIB, readAll, startProducer } from './harness.js';

const AT_ONCE = MAX_PEER_REQUEST_BYTES / MAX_MESSAGE_BYTES;
const WAITING = 4;
const GRPC_PREFIX_BYTES = 5;

const answer = async (call: PrefillCall) => call.send(Buffer.from(String(call.requestBytes.length)));

/** HTTP/2 as a foreign client speaks it, which sends a request in the pieces that it likes. */
async function session(port: number, identity: TestIdentity): Promise<ClientHttp2Session> {
  const socket = connectTls({
    ...{ port, host: '127.0.0.1', ca: authority.caPem, ALPNProtocols: ['h2'] },
    ...{ key: identity.tlsKeyPem, cert: identity.tlsCertificatePem, checkServerIdentity: () => undefined },
  });
  const opened = connectHttp2('http://muser.internal', { createConnection: () => socket });
  opened.on('error', () => undefined);
  afterTest(() => opened.destroy());
  await new Promise((resolve) => opened.once('remoteSettings', resolve));
  return opened;
}

/** A request of 1 MiB of which the last byte is missing. */
class Unfinished {
  readonly stream: ClientHttp2Stream;
  /** The server has taken all that was sent. */
  taken = false;
  grpcStatus: number | null = null;

  constructor(on: ClientHttp2Session) {
    this.stream = on.request({
      ':method': 'POST',
      ':path': '/muser.v1.Handoff/Prefill',
      'content-type': 'application/grpc',
      te: 'trailers',
    });
    const note = (headers: Record<string, unknown>) => {
      if (headers['grpc-status'] !== undefined) this.grpcStatus = Number(headers['grpc-status']);
    };
    this.stream
      .on('response', note)
      .on('trailers', note)
      .on('error', () => undefined)
      .resume();
    const request = Buffer.alloc(GRPC_PREFIX_BYTES + MIB - 1);
    request.writeUInt32BE(MIB, 1);
    this.stream.write(request, () => (this.taken = true));
  }

  finish(): void {
    this.stream.end(Buffer.alloc(1));
  }
}

const countOf = (requests: readonly Unfinished[], grpcStatus: number) =>
  requests.filter((request) => request.grpcStatus === grpcStatus).length;

describe('requests that are on their way', () => {
  // promise: A node that begins many requests and finishes none gets no more memory of a server than its share, and its
  // requests end after 10 seconds.
  // fault: memory-outside-heap
  it('are read within a budget of their peer, and end when they do not arrive', async () => {
    const { listener, target, calls } = await startProducer(answer);
    const hostile = await session(listener.address.port, decoder);
    const requests = Array.from({ length: AT_ONCE + WAITING }, () => new Unfinished(hostile));
    const taken = () => requests.filter((request) => request.taken);
    await expect.poll(() => taken().length).toBe(AT_ONCE);
    // Another peer has a share of its own.
    const other = connect(target, { identity: await authority.identity('decoder') });
    expect(await readAll(other.prefill(Buffer.alloc(MAX_MESSAGE_BYTES)))).toHaveLength(1);
    expect(taken()).toHaveLength(AT_ONCE);

    // One that is whole is answered, and makes room for one that waits.
    const [first] = taken();
    first?.finish();
    await expect.poll(() => first?.grpcStatus).toBe(status.OK);
    expect(calls.at(-1)?.requestBytes.length).toBe(MIB);
    await expect.poll(() => taken().length).toBe(AT_ONCE + 1);

    await expect
      .poll(() => countOf(requests, status.DEADLINE_EXCEEDED), { timeout: 30_000 })
      .toBe(AT_ONCE + WAITING - 1);
    expect(calls).toHaveLength(2);
    // All of the budget is free again.
    const again = Array.from({ length: AT_ONCE }, () => new Unfinished(hostile));
    await expect.poll(() => again.filter((request) => request.taken).length).toBe(AT_ONCE);
  });

  // promise: One node cannot take all calls of a server.
  it('are refused beyond the number of calls of a peer, until one ends', async () => {
    const { target } = await startProducer(async (call) => {
      await call.send(Buffer.alloc(1));
      if (call.requestBytes.length === 0) await aborted(call.signal);
    });
    const clients = [1, 2, 3].map(() => connect(target));
    const running = Array.from({ length: MAX_CALLS_PER_PEER }, (_, index) =>
      clients[index % clients.length]!.prefill(Buffer.alloc(0))[Symbol.asyncIterator](),
    );
    await Promise.all(running.map((call) => call.next()));
    const more = () => readAll(clients[0]!.prefill(Buffer.from('short')));
    const { message } = await expectCode(more(), 'RESOURCE_EXHAUSTED');
    expect(message).toContain(String(MAX_CALLS_PER_PEER));
    const other = connect(target, { identity: await authority.identity('decoder') });
    expect(await readAll(other.prefill(Buffer.from('short')))).toHaveLength(1);

    await running[0]?.return?.();
    await expect
      .poll(() =>
        more().then(
          (frames) => frames.length,
          () => 0,
        ),
      )
      .toBe(1);
    for (const call of running) await call.return?.();
  });
});
