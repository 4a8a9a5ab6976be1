// The built process when it is told to end, with transfers in every phase.
import type { ChildProcess } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { decodeFrame, encodePrefillRequest, type Frame, type NodeStatus } from '@muser/protocol';
import { FaultProxy, TestAuthority, type TestIdentity, type TestIdentityRequest } from '@muser/testing';
import { PeerClient } from '@muser/transport';
import { afterEach, beforeEach, expect, it } from 'vitest';

import { MUSE_NANO } from './support/model.js';
import { exitOf, runMain, startMain } from './support/process.js';
import { promptTokens } from './support/rows.js';
import { signedRequest } from './support/test-bed.js';

let stateDir: string;
let authority: TestAuthority;
let decoder: TestIdentity;
let child: ChildProcess;
let target: string;
let status: NodeStatus;
let proxy: FaultProxy;
const clients: PeerClient[] = [];

beforeEach(async () => {
  stateDir = await mkdtemp(join(tmpdir(), 'muser-draining-'));
  authority = await TestAuthority.create();
  decoder = await authority.identity('decoder');
  const dir = join(stateDir, 'identity');
  const { stdout } = await runMain(['identity', 'create', '--dir', dir]);
  const bundle = await authority.issue(JSON.parse(stdout) as TestIdentityRequest);
  await runMain(['identity', 'install', '--dir', dir], JSON.stringify(bundle));
});

afterEach(async () => {
  for (const client of clients.splice(0)) client.close();
  await proxy.close();
  if (child.exitCode === null && child.signalCode === null) child.kill('SIGKILL');
  await exitOf(child);
  await rm(stateDir, { recursive: true });
});

async function start(tokensPerSecond: number): Promise<void> {
  const file = join(stateDir, 'config.json');
  const config = { model: MUSE_NANO, threads: 1, maxPromptTokens: 4096, chunkTokens: 128, pacing: tokensPerSecond };
  await writeFile(file, JSON.stringify({ stateDir, logLevel: 'silent', ...config }));
  const started = await startMain(['run', '--config', file]);
  child = started.child;
  target = String(started.ready['address']);
  const [host = '', port] = target.split(':');
  proxy = await FaultProxy.listen({ target: { host, port: Number(port) } });
  const watcher = PeerClient.connect({
    identity: await authority.identity('coordinator'),
    target,
    expect: { role: 'producer' },
  });
  const first = await watcher.watchNode({ protocolVersion: 1, intervalMs: 1000 }).next();
  watcher.close();
  if (first.value === undefined) throw new Error('no status');
  status = first.value;
}

/** A transfer on a connection of its own. */
class Reader {
  readonly #frames: AsyncIterator<Buffer>;

  constructor(tokens: number, address = target) {
    const client = PeerClient.connect({ identity: decoder, target: address, expect: { role: 'producer' } });
    clients.push(client);
    const parties = { authority, decoderId: decoder.nodeId, producerId: status.nodeId, model: status.model };
    const request = signedRequest(parties, { tokens: promptTokens(tokens, 4096, tokens) });
    this.#frames = client.prefill(encodePrefillRequest(request))[Symbol.asyncIterator]();
  }

  /** The next frame of this kind; those before it are dropped. Null at the end. */
  async next(...kinds: Frame['kind'][]): Promise<Frame | null> {
    for (;;) {
      const { value, done } = await this.#frames.next();
      if (done === true) return null;
      const frame = decodeFrame(value);
      if (kinds.includes(frame.kind)) return frame;
    }
  }

  /** How it ends: sealed, or with a code. */
  async ending(): Promise<string> {
    const last = await this.next('seal', 'error');
    expect(await this.next('begin', 'progress', 'shard', 'seal', 'error')).toBeNull();
    return last?.kind === 'error' ? last.value.code : (last?.kind ?? 'no end');
  }
}

// promise: SIGTERM lets a producer's running transfers end and takes no new ones; those that only wait move elsewhere at once.
it('finishes what is sent and what is computed, and turns away what waits and what comes', async () => {
  await start(1000);
  // 12 MB on a link that takes nothing for now: more than sockets hold.
  const sending = new Reader(3000, proxy.target);
  await sending.next('begin');
  proxy.freeze();
  // Seconds, in which the signal has to come.
  const prefilling = new Reader(4000);
  await prefilling.next('begin');
  const queued = new Reader(50);
  await queued.next('progress');
  // Its turn has come, so the one before is computed.
  await prefilling.next('shard');

  child.kill('SIGTERM');
  expect(await queued.ending()).toBe('PRODUCER_DRAINING');
  await expect(new Reader(20).next('begin')).rejects.toMatchObject({ code: 'PRODUCER_DRAINING' });
  expect(await prefilling.ending()).toBe('seal');
  proxy.thaw();
  expect(await sending.ending()).toBe('seal');
  expect(await exitOf(child)).toBe(0);
});

it('ends at once when it is told so again', async () => {
  await start(1);
  const prefilling = new Reader(1025);
  await prefilling.next('begin');
  const queued = new Reader(50);
  await queued.next('begin');
  child.kill('SIGTERM');
  expect(await queued.ending()).toBe('PRODUCER_DRAINING');
  child.kill('SIGTERM');
  expect(await exitOf(child)).toBe(143);
  await expect(prefilling.ending()).rejects.toMatchObject({ code: 'PEER_UNREACHABLE' });
});
