import { RawHttp2, type TestIdentity } from '@muser/testing';
import { expect, it } from 'vitest';
import { afterTest, authority, connect, decoder, deferred, MIB, startProducer } from './harness.js';

const PATH = '/muser.v1.Handoff/Prefill';

// promise: A hundred connections of enrolled nodes that call nothing are dropped, and a transfer beside them goes on.
// fault: open-to-anybody
it(
  'drops 100 connections that finish their handshake and call nothing, and disturbs no transfer',
  { timeout: 120_000 },
  async () => {
    const dropped = deferred();
    const { listener, target } = await startProducer(async (call) => {
      for (let index = 0; index < 8; index += 1) await call.send(Buffer.alloc(MIB, index));
      await dropped.promise;
      for (let index = 8; index < 16; index += 1) await call.send(Buffer.alloc(MIB, index));
    });
    const frames: (number | undefined)[] = [];
    const transfer = (async () => {
      for await (const frame of connect(target).prefill(Buffer.alloc(0))) frames.push(frame[0]);
    })();
    const open = async (identity: TestIdentity) => {
      const client = await RawHttp2.connect({ port: listener.address.port, ca: authority.caPem, identity });
      afterTest(() => client.destroy());
      return client;
    };
    const peers = await Promise.all(Array.from({ length: 100 }, () => authority.identity('decoder')));
    const clients = await Promise.all(peers.map(open));
    const caller = await open(decoder);
    await caller.openCall(PATH);
    // They got through: the server's settings are there.
    await expect.poll(() => clients.filter(({ receivedBytes }) => receivedBytes > 0).length).toBe(100);

    await Promise.all(clients.map(({ closed }) => closed));
    expect(caller.open).toBe(true);
    dropped.resolve();
    await transfer;
    expect(frames).toEqual(Array.from({ length: 16 }, (_, index) => index));
  },
);
