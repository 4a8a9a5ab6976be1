// The built process, as the CLI starts it: enrollment by files, ready line, signals.
import type { ChildProcess } from 'node:child_process';
import { mkdtemp, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { encodePrefillRequest } from '@muser/protocol';
import { floodInEveryWay, TestAuthority, type TestIdentityRequest } from '@muser/testing';
import { MAX_PEER_BURST_BYTES, PeerClient } from '@muser/transport';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';

import { MUSE_NANO } from './support/model.js';
import { exitOf, runMain, startMain } from './support/process.js';
import { promptTokens } from './support/rows.js';
import { signedRequest } from './support/test-bed.js';

let stateDir: string;
let authority: TestAuthority;
let configFile: string;
let child: ChildProcess | null;
let client: PeerClient | null;

beforeEach(async () => {
  stateDir = await mkdtemp(join(tmpdir(), 'muser-producer-'));
  authority = await TestAuthority.create();
  configFile = join(stateDir, 'config.json');
  child = null;
  client = null;
});

afterEach(async () => {
  client?.close();
  if (child !== null && child.exitCode === null) {
    child.kill('SIGKILL');
    await exitOf(child);
  }
  await rm(stateDir, { recursive: true });
});

async function enroll(): Promise<void> {
  const dir = join(stateDir, 'identity');
  const created = await runMain(['identity', 'create', '--dir', dir]);
  expect(created.code, created.stderr).toBe(0);
  const bundle = await authority.issue(JSON.parse(created.stdout) as TestIdentityRequest);
  const installed = await runMain(['identity', 'install', '--dir', dir], JSON.stringify(bundle));
  expect(installed.code, installed.stderr).toBe(0);
  expect((await stat(dir)).mode & 0o777).toBe(0o700);
}

async function run(config: Record<string, unknown> = {}): Promise<Record<string, unknown>> {
  const whole = { stateDir, model: MUSE_NANO, threads: 1, maxPromptTokens: 4096, logLevel: 'silent', ...config };
  await writeFile(configFile, JSON.stringify(whole));
  const started = await startMain(['run', '--config', configFile]);
  child = started.child;
  return started.ready;
}

/** The frames of a transfer of 1,025 tokens, after Begin. */
async function beginTransfer(ready: Record<string, unknown>): Promise<AsyncIterator<Buffer>> {
  const identity = await authority.identity('decoder');
  client = PeerClient.connect({ identity, target: String(ready['address']), expect: { role: 'producer' } });
  const coordinator = await authority.identity('coordinator');
  const watcher = PeerClient.connect({
    ...{ identity: coordinator },
    target: String(ready['address']),
    expect: { role: 'producer' },
  });
  const status = (await watcher.watchNode({ protocolVersion: 1, intervalMs: 1000 }).next()).value;
  watcher.close();
  if (status === undefined) throw new Error('no status');
  const tokens = promptTokens(1025, 4096, 1);
  const request = signedRequest(
    { authority, decoderId: identity.nodeId, producerId: status.nodeId, model: status.model },
    { tokens },
  );
  const frames = client.prefill(encodePrefillRequest(request))[Symbol.asyncIterator]();
  await frames.next();
  return frames;
}

async function rest(frames: AsyncIterator<Buffer>): Promise<number> {
  let count = 0;
  for (;;) {
    const { done } = await frames.next();
    if (done === true) return count;
    count += 1;
  }
}

describe('the producer process', () => {
  it('enrolls, says that it is ready, and closes on SIGTERM with 0', async () => {
    await enroll();
    const ready = await run();
    expect(ready).toMatchObject({ ready: true, pid: child?.pid, backend: 'llama' });
    expect(ready['address']).toMatch(/^127\.0\.0\.1:\d+$/);
    child?.kill('SIGTERM');
    expect(await exitOf(child as ChildProcess)).toBe(0);
  });

  it('finishes what runs when it is told to end', async () => {
    await enroll();
    const ready = await run({ pacing: 2000 });
    const frames = await beginTransfer(ready);
    child?.kill('SIGTERM');
    expect(await rest(frames)).toBeGreaterThan(2);
    expect(await exitOf(child as ChildProcess)).toBe(0);
  });

  it('cancels what does not finish in time, tells its reader, and ends with 0', async () => {
    await enroll();
    const ready = await run({ pacing: 10, drainMs: 100 });
    const frames = await beginTransfer(ready);
    child?.kill('SIGTERM');
    await rest(frames);
    expect(await exitOf(child as ChildProcess)).toBe(0);
  });

  // promise: Floods of HTTP/2 frames at a producer's port end with their connections; its transfers go on.
  // fault: open-to-anybody
  it.each([
    ['enrolled nodes', true],
    ['who has no certificate', false],
  ])('ends floods of frames by %s, and finishes what runs', { timeout: 180_000 }, async (_, enrolled) => {
    await enroll();
    const ready = await run({ pacing: 500 });
    const frames = await beginTransfer(ready);
    const notEnded = await floodInEveryWay({
      port: Number(String(ready['address']).split(':').at(-1)),
      ca: authority.caPem,
      path: '/muser.v1.Handoff/Prefill',
      identity: () => (enrolled ? authority.identity('decoder') : Promise.resolve(null)),
      limitBytes: 8 * MAX_PEER_BURST_BYTES,
    });
    expect(notEnded).toEqual([]);
    expect(await rest(frames)).toBeGreaterThan(2);
  });

  it('ends when its parent is gone', async () => {
    await enroll();
    await run({ exitWithParent: true });
    child?.stdin?.end();
    expect(await exitOf(child as ChildProcess)).toBe(0);
  });

  it('says on its first line why it cannot start', async () => {
    const ready = await run();
    expect(ready).toMatchObject({ ready: false, error: { code: 'NOT_FOUND' } });
    expect(await exitOf(child as ChildProcess)).toBe(1);
  });

  it('refuses a configuration with an unknown key and ends with 2', async () => {
    await writeFile(configFile, JSON.stringify({ stateDir, model: MUSE_NANO, chunkTokenz: 5 }));
    const { code, stderr } = await runMain(['run', '--config', configFile]);
    expect(code).toBe(2);
    expect(stderr).toContain('chunkTokenz');
  });

  it.each([
    ['{}', 'CERTIFICATE_INVALID'],
    ['{"xxx', 'INVALID_REQUEST'],
    ['x'.repeat(70_000), 'MESSAGE_TOO_LARGE'],
  ])('refuses a bundle that is none, and does not quote it', async (input, refusal) => {
    const dir = join(stateDir, 'identity');
    const { code, stderr } = await runMain(['identity', 'install', '--dir', dir], input);
    expect(code).toBe(1);
    expect(stderr).toContain(refusal);
    expect(stderr).not.toContain('xxx');
  });
});
