import { floodInEveryWay, RawHttp2 } from '@muser/testing';
import { describe, expect, it } from 'vitest';
import { MAX_PEER_BURST_BYTES } from '../src/index.js';
import { afterTest, authority, connect, deferred, MIB, producer, readAll } from './harness.js';
import { Victim, VICTIM_FRAMES } from './support/victim.js';

const LIMIT_MS = 180_000;
const PATH = '/muser.v1.Handoff/Prefill';
/** The burst, what grows back while the server is busy with two dozen of them, and what the kernel keeps. */
const FLOOD_BYTES = 8 * MAX_PEER_BURST_BYTES;
/** What the process may grow by, most of which waits for garbage collection. The attackers send more than a gigabyte. */
const GROWTH_BYTES = 256 * MIB;

async function startVictim(): Promise<Victim> {
  const victim = await Victim.start(producer);
  afterTest(() => victim.stop());
  return victim;
}

/** A transfer that is read slowly, a frame a second, until the function is called: that reads the rest and counts. */
async function beginTransfer(victim: Victim): Promise<() => Promise<number>> {
  const other = connect(`127.0.0.1:${victim.port}`, { identity: await authority.identity('decoder') });
  const frames = other.prefill(Buffer.alloc(0))[Symbol.asyncIterator]();
  await frames.next();
  const hurry = deferred();
  const count = (async () => {
    let received = 1;
    for (let step = await frames.next(); step.done !== true; step = await frames.next()) {
      received += 1;
      await Promise.race([hurry.promise, new Promise((resolve) => setTimeout(resolve, 1_000))]);
    }
    return received;
  })();
  return () => {
    hurry.resolve();
    return count;
  };
}

describe('a server under a flood of HTTP/2 frames', () => {
  // promise: A flood of HTTP/2 frames (pings, settings, resets, heads, streams) by enrolled nodes ends with their
  // connections, costs bounded memory, and stops no transfer of another node.
  // fault: open-to-anybody
  it('ends the connections of enrolled nodes that do it, and nothing else', { timeout: LIMIT_MS }, async () => {
    const victim = await startVictim();
    const finish = await beginTransfer(victim);
    const before = await victim.peakBytes();
    const notEnded = await floodInEveryWay({
      ...{ port: victim.port, ca: authority.caPem, path: PATH, limitBytes: FLOOD_BYTES },
      identity: () => authority.identity('decoder'),
    });
    expect(notEnded).toEqual([]);
    expect(await finish()).toBe(VICTIM_FRAMES);
    const growth = (await victim.peakBytes()) - before;
    expect(growth).toBeLessThan(GROWTH_BYTES);
    const after = connect(`127.0.0.1:${victim.port}`, { identity: await authority.identity('decoder') });
    expect(await readAll(after.prefill(Buffer.alloc(0)))).toHaveLength(VICTIM_FRAMES);
  });

  // promise: Who has no certificate can send a server no frame of HTTP/2 that it reads.
  it('does not read a frame of who has no certificate', { timeout: LIMIT_MS }, async () => {
    const victim = await startVictim();
    const finish = await beginTransfer(victim);
    const notEnded = await floodInEveryWay({
      ...{ port: victim.port, ca: authority.caPem, path: PATH, limitBytes: MAX_PEER_BURST_BYTES },
      identity: () => Promise.resolve(null),
    });
    expect(notEnded).toEqual([]);
    const silent = await RawHttp2.connect({ port: victim.port, ca: authority.caPem });
    await silent.closed;
    expect(silent.receivedBytes).toBe(0);
    expect(await finish()).toBe(VICTIM_FRAMES);
  });
});
