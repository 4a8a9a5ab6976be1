// Revoked nodes at a producer, over real gRPC and TLS: what runs ends, what is new is refused, and a restart forgets nothing.
import { once } from 'node:events';
import { mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { connect as connectTls } from 'node:tls';

import { MuserError } from '@muser/protocol';
import { afterEach, describe, expect, it } from 'vitest';

import { PATTERN_GEOMETRY, PatternBackend, patternRows } from './support/pattern-backend.js';
import { promptTokens } from './support/rows.js';
import { NOTHING_LEFT, TestBed, type TestPeer, until } from './support/test-bed.js';

const tokens = promptTokens(300, PATTERN_GEOMETRY.vocabularySize, 1);

let bed: TestBed;
let coordinator: TestPeer;
let decoder: TestPeer;

async function start(engine = new PatternBackend()): Promise<PatternBackend> {
  bed = await TestBed.start({}, engine);
  await connect();
  return engine;
}

async function connect(): Promise<void> {
  [coordinator, decoder] = [await bed.peer('coordinator'), await bed.peer('decoder')];
}

afterEach(() => bed.close());

const file = (): string => join(bed.stateDir, 'revoked.json');

async function revoke(version: number, ...peers: TestPeer[]): Promise<number> {
  const nodeIds = peers.map(({ identity }) => identity.nodeId);
  return (await coordinator.client.setRevoked({ protocolVersion: 1, version, nodeIds })).version;
}

const codeOf = async (work: Promise<unknown>): Promise<string> => {
  const error = await work.then(
    () => null,
    (thrown: unknown) => thrown,
  );
  return error instanceof MuserError ? error.code : 'none';
};

describe('a decoder that is revoked', () => {
  it.each(['queued', 'prefilling', 'sending'] as const)(
    'loses the transfer that is %s, and is told why, while others go on',
    async (state) => {
      // Steps happen when the test says so; a transfer that has been computed is held back by its reader.
      const engine = await start(new PatternBackend({ maxConcurrent: 1 }, 0));
      const other = await bed.peer('decoder');
      let take: () => void = () => undefined;
      const taken = new Promise<void>((resolve) => (take = resolve));
      if (state === 'queued') {
        const before = other.receive(other.request({ tokens }));
        await engine.blocked();
        const waiting = codeOf(decoder.receive(decoder.request({ tokens })));
        await until(() => bed.producer.transfers.load.queueLength === 1);
        await revoke(1, decoder);
        expect(await waiting).toBe('NODE_REVOKED');
        engine.allow(Infinity);
        expect((await before).rows.firstDifference(patternRows(tokens))).toBeNull();
        return;
      }
      let wasHeld = false;
      const onEvent = (): Promise<void> | undefined => {
        wasHeld = true;
        return state === 'sending' ? taken : undefined;
      };
      const running = codeOf(decoder.receive(decoder.request({ tokens }), { onEvent }));
      if (state === 'sending') engine.allow(Infinity);
      else await engine.blocked();
      await until(() => wasHeld);
      expect(await revoke(1, decoder)).toBe(1);
      take();
      // A reader that is slow may find the connection broken before it has come to the Error frame, or everything on the way to it.
      const ends = state === 'sending' ? ['NODE_REVOKED', 'PEER_UNREACHABLE', 'none'] : ['NODE_REVOKED'];
      expect(ends).toContain(await running);
      expect(await bed.idle()).toEqual(NOTHING_LEFT);
      engine.allow(Infinity);
      const rows = (await other.receive(other.request({ tokens }))).rows;
      expect(rows.firstDifference(patternRows(tokens))).toBeNull();
    },
  );

  // promise: A producer refuses a revoked decoder as soon as the coordinator has told it, although its ticket is still good.
  it('is refused although its ticket is good, on old connections and new ones', async () => {
    await start();
    await decoder.receive(decoder.request({ tokens }));
    await revoke(1, decoder);
    expect(await codeOf(decoder.receive(decoder.request({ tokens })))).toBe('NODE_REVOKED');
    expect(await codeOf(decoder.receive(decoder.request({ tokens })))).toBe('NODE_REVOKED');
  });

  it('loses its connections', async () => {
    await start();
    await decoder.receive(decoder.request({ tokens }));
    // A connection like that of the client, on which nothing runs.
    const { tlsKeyPem: key, tlsCertificatePem: cert, caPem: ca } = decoder.identity;
    const { host, port } = bed.producer.address;
    const socket = connectTls({
      host,
      port,
      key,
      cert,
      ca,
      ALPNProtocols: ['h2'],
      checkServerIdentity: () => undefined,
    });
    socket.on('error', () => undefined).resume();
    await once(socket, 'secureConnect');
    const closed = once(socket, 'close');
    await revoke(1, decoder);
    await closed;
  });

  it('stays refused after a restart without a coordinator', async () => {
    await start();
    const { identity } = decoder;
    await revoke(1, decoder);
    expect(JSON.parse(await readFile(file(), 'utf8'))).toEqual({ version: 1, nodeIds: [identity.nodeId] });
    await bed.restart();
    const again = await bed.peer('decoder', bed.target, identity);
    expect(await codeOf(again.receive(again.request({ tokens })))).toBe('NODE_REVOKED');
  });
});

describe('the list of revoked nodes', () => {
  it('is complete: who is not in a newer one is let in again', async () => {
    await start();
    const other = await bed.peer('decoder');
    await revoke(1, decoder);
    expect(await revoke(2, other)).toBe(2);
    expect(await codeOf(decoder.receive(decoder.request({ tokens })))).toBe('none');
    expect(await codeOf(other.receive(other.request({ tokens })))).toBe('NODE_REVOKED');
  });

  it('that comes late adds, and lets nobody in again', async () => {
    await start();
    const other = await bed.peer('decoder');
    await revoke(2, decoder);
    expect(await revoke(1, other)).toBe(2);
    for (const peer of [decoder, other]) {
      expect(await codeOf(peer.receive(peer.request({ tokens })))).toBe('NODE_REVOKED');
    }
  });

  it('is taken from the coordinator alone', async () => {
    await start();
    const list = { protocolVersion: 1, version: 9, nodeIds: [decoder.identity.nodeId] };
    for (const peer of [decoder, await bed.peer('producer')]) {
      expect(await codeOf(peer.client.setRevoked(list))).toBe('PERMISSION_DENIED');
    }
    expect(await codeOf(decoder.receive(decoder.request({ tokens })))).toBe('none');
  });

  it('holds also when it cannot be written', async () => {
    await start();
    // A folder in its place, because root may write to a file that nobody may.
    await mkdir(file());
    await revoke(1, decoder);
    expect(await codeOf(decoder.receive(decoder.request({ tokens })))).toBe('NODE_REVOKED');
  });

  it('stops a start when its file is damaged, which says what to do', async () => {
    await start();
    await revoke(1, decoder);
    await writeFile(file(), '{"version":1,"nodeIds":["x"]}', { mode: 0o600 });
    await expect(bed.restart()).rejects.toMatchObject({
      code: 'CONFIG_INVALID',
      message: expect.stringContaining('delete it') as string,
    });
    await rm(file());
    await bed.restart();
  });
});

describe('a ticket that ends while its transfer runs', () => {
  // promise: Without a coordinator a revoked decoder's transfer ends with its ticket.
  it('ends the transfer with a code', async () => {
    const engine = await start(new PatternBackend({}, 0));
    const blocked = engine.blocked().then(() => true);
    let running = Promise.resolve('none');
    // Longer and longer, because on a slow machine a brief ticket ends before its request is read.
    for (let leftMs = 500, began = false; !began; leftMs *= 2) {
      const nowMs = Date.now();
      // As late as clocks may differ: five minutes after its end, and a little.
      const ticketFields = { issuedAtMs: nowMs - 10 * 60_000, expiresAtMs: nowMs - 5 * 60_000 + leftMs };
      running = codeOf(decoder.receive(decoder.request({ tokens, ticketFields })));
      began = await Promise.race([blocked, running.then(() => false)]);
    }
    expect(await running).toBe('TICKET_EXPIRED');
    expect(await bed.idle()).toEqual(NOTHING_LEFT);
  });
});
