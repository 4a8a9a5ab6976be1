import { connect as connectTcp, createServer as createTcpServer, type AddressInfo, type Socket } from 'node:net';
import { connect as connectTls, type ConnectionOptions, type TLSSocket } from 'node:tls';
import { MuserError } from '@muser/protocol';
import { describe, expect, it } from 'vitest';
import { MAX_CONNECTIONS_PER_PEER, PeerListener, createServer } from '../src/index.js';
import {
  aborted,
  afterTest,
  authority,
  connect,
  decoder,
  deferred,
  expectCode,
  next,
  producer,
  readAll,
  startProducer,
  strangers,
} from './harness.js';

const HOUR_MS = 3_600_000;

const answer = async (call: { send: (frame: Buffer) => Promise<void> }) => call.send(Buffer.from('frame'));

/** A bare TLS client; resolves with how the connection ended. */
async function handshake(port: number, options: ConnectionOptions): Promise<'open' | 'refused'> {
  const socket = connectTls({
    port,
    host: '127.0.0.1',
    ca: authority.caPem,
    ALPNProtocols: ['h2'],
    checkServerIdentity: () => undefined,
    ...options,
  });
  afterTest(() => socket.destroy());
  socket.on('error', () => undefined);
  // The server's first bytes (its HTTP/2 settings) come only after it has accepted the client.
  return Promise.race([
    next(socket, 'data').then(() => 'open' as const),
    next(socket, 'close').then(() => 'refused' as const),
  ]);
}

const credentials = (identity: { tlsKeyPem: string; tlsCertificatePem: string }): ConnectionOptions => ({
  key: identity.tlsKeyPem,
  cert: identity.tlsCertificatePem,
});

describe('what a listener accepts', () => {
  // promise: An enrolled node is let in, and the other side knows which node it is.
  it('accepts an enrolled peer, and knows who it is', async () => {
    const { target, calls } = await startProducer(answer);
    expect((await readAll(connect(target).prefill(Buffer.from('request'))))[0]?.toString()).toBe('frame');
    expect(calls[0]?.peer).toMatchObject({ role: 'decoder', nodeId: decoder.nodeId });
    expect(calls[0]?.requestBytes.toString()).toBe('request');
  });

  // promise: A peer with TLS 1.2, without a certificate, with one of another authority, or without HTTP/2 is refused
  // in the handshake.
  // fault: open-to-anybody
  it('accepts no TLS 1.2, no missing certificate, no other CA, no missing ALPN', async () => {
    const { listener } = await startProducer(answer);
    const { port } = listener.address;
    const stranger = await strangers.identity('decoder');
    expect(await handshake(port, credentials(decoder))).toBe('open');
    expect(await handshake(port, { ...credentials(decoder), maxVersion: 'TLSv1.2' })).toBe('refused');
    expect(await handshake(port, {})).toBe('refused');
    expect(await handshake(port, credentials(stranger))).toBe('refused');
    expect(await handshake(port, { ...credentials(decoder), ALPNProtocols: ['http/1.1'] })).toBe('refused');
    expect(await handshake(port, { ...credentials(decoder), ALPNProtocols: [] })).toBe('refused');
  });

  // promise: A peer whose certificate has expired or names no node is refused in the handshake.
  it('accepts no expired certificate and none that names no node', async () => {
    const { listener } = await startProducer(answer);
    const expired = await authority.identity('decoder', {
      notBefore: new Date(Date.now() - 2 * HOUR_MS),
      notAfter: new Date(Date.now() - HOUR_MS),
    });
    const nameless = await authority.identity('decoder', { uri: 'https://example.org/' });
    expect(await handshake(listener.address.port, credentials(expired))).toBe('refused');
    expect(await handshake(listener.address.port, credentials(nameless))).toBe('refused');
  });

  // promise: Plain text is refused, and the port goes on serving others.
  // fault: open-to-anybody
  it('refuses plain text, and goes on serving', async () => {
    const { listener, target } = await startProducer(answer);
    const socket = connectTcp(listener.address.port, '127.0.0.1');
    afterTest(() => socket.destroy());
    socket.on('error', () => undefined).resume();
    socket.write('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n');
    await next(socket, 'close');
    expect(await readAll(connect(target).prefill(Buffer.alloc(0)))).toHaveLength(1);
  });

  // promise: A hundred connections that say nothing are dropped, and enrolled nodes are served meanwhile.
  // fault: open-to-anybody
  it('drops 100 silent connections, and serves a peer while they are there', async () => {
    const { listener, target } = await startProducer(answer);
    const sockets: Socket[] = Array.from({ length: 100 }, () => connectTcp(listener.address.port, '127.0.0.1'));
    afterTest(() => sockets.forEach((socket) => socket.destroy()));
    for (const socket of sockets) socket.on('error', () => undefined).resume();
    const dropped = Promise.all(sockets.map((socket) => next(socket, 'close')));
    await Promise.all(sockets.filter((socket) => socket.pending).map((socket) => next(socket, 'connect')));
    expect(await readAll(connect(target).prefill(Buffer.alloc(0)))).toHaveLength(1);
    await dropped;
  });

  // promise: One node cannot take all connections of another.
  it('limits the connections of one peer, without harm to another', async () => {
    const { listener, target } = await startProducer(answer);
    const open: TLSSocket[] = [];
    afterTest(() => open.forEach((socket) => socket.destroy()));
    for (let count = 0; count < MAX_CONNECTIONS_PER_PEER; count += 1) {
      expect(await handshake(listener.address.port, credentials(decoder))).toBe('open');
    }
    expect(await handshake(listener.address.port, credentials(decoder))).toBe('refused');
    const other = connect(target, { identity: await authority.identity('decoder') });
    expect(await readAll(other.prefill(Buffer.alloc(0)))).toHaveLength(1);
  });

  it('says that a port is in use', async () => {
    const { listener } = await startProducer(answer);
    const again = PeerListener.listen({ identity: producer, ...listener.address, server: createServer() });
    expect((await expectCode(again, 'PORT_IN_USE')).message).toContain(String(listener.address.port));
    await expectCode(
      PeerListener.listen({ identity: producer, host: '203.0.113.1', port: 0, server: createServer() }),
      'UNAVAILABLE',
    );
  });
});

describe('certificates outside their time', () => {
  const later = { notBefore: new Date(Date.now() + HOUR_MS), notAfter: new Date(Date.now() + 2 * HOUR_MS) };
  const ended = { notBefore: new Date(Date.now() - 2 * HOUR_MS), notAfter: new Date(Date.now() - HOUR_MS) };
  const cases = [
    ['not yet valid', later, 'CLOCK_SKEW', 'set the clocks of both machines'],
    ['at its end', ended, 'CERTIFICATE_INVALID', 'set the clock'],
  ] as const;

  it.each(cases)('of a server, %s: the client says so, and names its clock', async (_, period, code, advice) => {
    const identity = await authority.identity('producer', period);
    const { target } = await startProducer(answer, { identity });
    const client = connect(target, { expect: { role: 'producer', nodeId: identity.nodeId } });
    const { message } = await expectCode(client.prefill(Buffer.alloc(0)), code);
    expect(message).toContain(advice);
    expect(message).toContain(new Date().toISOString().slice(0, 13));
  });

  it.each(cases)(
    'of a client, %s: the server logs it, the client is asked to compare',
    async (_, period, code, advice) => {
      const server = createServer();
      const warned: object[] = [];
      const logger = { debug: () => undefined, warn: (fields: object) => warned.push(fields) };
      const listener = await PeerListener.listen({ identity: producer, host: '127.0.0.1', port: 0, server, logger });
      afterTest(() => listener.close(0));
      const client = connect(`127.0.0.1:${listener.address.port}`, {
        identity: await authority.identity('decoder', period),
      });
      const { message } = await expectCode(client.prefill(Buffer.alloc(0)), 'PEER_UNREACHABLE');
      expect(message).toContain('do both clocks agree?');
      expect(warned[0]).toMatchObject({ code, reason: expect.stringContaining(advice) as string });
    },
  );
});

describe('authorization', () => {
  // promise: A node of the wrong role gets its refusal before anything of its call is handled.
  it('refuses a call with the code that authorize throws, before the handler', async () => {
    const { target, calls } = await startProducer(answer, {
      authorize: (peer) => {
        if (peer.role !== 'coordinator') throw new MuserError('PERMISSION_DENIED', `not for a ${peer.role}`);
      },
    });
    const error = await expectCode(connect(target).prefill(Buffer.alloc(0)), 'PERMISSION_DENIED');
    expect(error.message).toBe('not for a decoder');
    expect(calls).toHaveLength(0);
  });

  // promise: When a node is disconnected all that runs for it ends, and nothing of anybody else.
  it('breaks what runs for a disconnected peer, and nothing else', async () => {
    const other = await authority.identity('decoder');
    const started = { [decoder.nodeId]: deferred(), [other.nodeId]: deferred() };
    const finish = deferred();
    const { listener, target, calls } = await startProducer(async (call) => {
      await call.send(Buffer.from('frame'));
      started[call.peer.nodeId]?.resolve();
      await Promise.race([finish.promise, aborted(call.signal)]);
    });
    const broken = expectCode(connect(target).prefill(Buffer.alloc(0)), 'PEER_UNREACHABLE');
    const whole = readAll(connect(target, { identity: other }).prefill(Buffer.alloc(0)));
    await Promise.all([started[decoder.nodeId]?.promise, started[other.nodeId]?.promise]);
    expect(listener.disconnectPeer(decoder.nodeId)).toBe(1);
    await broken;
    const call = calls.find(({ peer }) => peer.nodeId === decoder.nodeId);
    expect(await aborted(call!.signal)).toMatchObject({ code: 'CANCELLED' });
    finish.resolve();
    expect(await whole).toHaveLength(1);
  });

  // promise: A certificate that expires while its connection is open is refused at the next call.
  it('refuses a call on an open connection after the certificate has expired', async () => {
    // Valid for the handshake; the second call comes after its end.
    const brief = await authority.identity('decoder', { notAfter: new Date(Date.now() + 6_000) });
    const { target } = await startProducer(answer);
    const client = connect(target, { identity: brief });
    expect(await readAll(client.prefill(Buffer.alloc(0)))).toHaveLength(1);
    await expect
      .poll(
        () =>
          readAll(client.prefill(Buffer.alloc(0))).then(
            () => null,
            (error: MuserError) => error.code,
          ),
        {
          timeout: 20_000,
          interval: 100,
        },
      )
      .toBe('CERTIFICATE_INVALID');
  });
});

describe('what a client accepts', () => {
  // promise: A node that dials accepts only the node and the role that it expects.
  it('accepts only the node and the role that it expects', async () => {
    const { target } = await startProducer(answer);
    const otherNode = (await authority.identity('producer')).nodeId;
    const wrongNode = connect(target, { expect: { role: 'producer', nodeId: otherNode } });
    const error = await expectCode(wrongNode.prefill(Buffer.alloc(0)), 'PEER_IDENTITY');
    expect(error.message).toContain(producer.nodeId);
    const wrongRole = connect(target, { expect: { role: 'coordinator' } });
    await expectCode(wrongRole.prefill(Buffer.alloc(0)), 'PEER_IDENTITY');
    expect(await readAll(connect(target, { expect: { role: 'producer' } }).prefill(Buffer.alloc(0)))).toHaveLength(1);
  });

  // promise: A server of another authority is refused, and is told from one that cannot be reached.
  it('accepts no server of another CA, none without a node name, and tells an unreachable one apart', async () => {
    const stranger = await startProducer(answer, { identity: await strangers.identity('producer') });
    await expectCode(connect(stranger.target).prefill(Buffer.alloc(0)), 'PEER_IDENTITY');
    const nameless = await authority.identity('producer', { uri: 'https://example.org/' });
    const unnamed = await startProducer(answer, { identity: nameless });
    await expectCode(connect(unnamed.target).prefill(Buffer.alloc(0)), 'PEER_IDENTITY');
    const free = await startProducer(answer);
    await free.listener.close(0);
    await expectCode(connect(free.target).prefill(Buffer.alloc(0)), 'PEER_UNREACHABLE');
  });

  it('says so when the server refuses its certificate', async () => {
    const { target } = await startProducer(answer);
    const stranger = { ...(await strangers.identity('decoder')), caPem: authority.caPem };
    const refused = connect(target, { identity: stranger }).prefill(Buffer.alloc(0));
    expect((await expectCode(refused, 'PEER_UNREACHABLE')).message).toContain('is this node enrolled there');
  });

  // fault: wrong-interface
  it('gives up on a server that accepts and never speaks', async () => {
    const sockets: Socket[] = [];
    const silent = createTcpServer((socket) => void sockets.push(socket.on('error', () => undefined)));
    await new Promise<void>((resolve) => silent.listen(0, '127.0.0.1', resolve));
    afterTest(() => {
      sockets.forEach((socket) => socket.destroy());
      silent.close();
    });
    const { port } = silent.address() as AddressInfo;
    const error = await expectCode(connect(`127.0.0.1:${port}`).prefill(Buffer.alloc(0)), 'PEER_UNREACHABLE');
    expect(error.message).toContain('did not answer');
  });

  // promise: No proxy is taken from the environment.
  it('uses no proxy from the environment', async () => {
    const { target } = await startProducer(answer);
    process.env['grpc_proxy'] = 'http://127.0.0.1:9';
    process.env['https_proxy'] = 'http://127.0.0.1:9';
    afterTest(() => {
      delete process.env['grpc_proxy'];
      delete process.env['https_proxy'];
    });
    expect(await readAll(connect(target).prefill(Buffer.alloc(0)))).toHaveLength(1);
  });

  // promise: A connection that was made with one identity is never used with another.
  it('never uses a connection that was made with another identity', async () => {
    const { target, calls } = await startProducer(answer);
    const other = await authority.identity('decoder');
    await readAll(connect(target).prefill(Buffer.alloc(0)));
    await readAll(connect(target, { identity: other }).prefill(Buffer.alloc(0)));
    expect(calls.map(({ peer }) => peer.nodeId)).toEqual([decoder.nodeId, other.nodeId]);
  });
});
