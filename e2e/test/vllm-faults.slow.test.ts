// Real vLLM on the CPU fails under a running system whose disk for logs is full: every answer is right all the same, and
// the system comes back by itself. What a worker can do wrong in which phase is in gb10-producer's worker-faults test.
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { processesBelow } from '@muser/testing';
import type { ResultPromise } from 'execa';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Cleanups } from './support/cleanups.js';
import { Dev, eventually, heard, isAlive, muser, startMuser } from './support/muser.js';
import { writeNeedles, type NeedleFile } from './support/needles.js';

const INSTALLER = fileURLToPath(new URL('../../scripts/vllm-env.mjs', import.meta.url));
/** Importing vLLM alone takes a minute on a busy machine with two cores. */
const START_MS = 900_000;
const LIMIT_MS = 600_000;

interface Asked {
  answer: string;
  prefill: string;
  fallback: { code: string; message: string } | null;
}

const cleanups = new Cleanups();
let folder: string;
let logs: string;
let isFull = false;
let dev: Dev;
let short: NeedleFile;
let long: NeedleFile;

beforeAll(async () => {
  execFileSync(process.execPath, [INSTALLER, '--quiet'], { stdio: 'inherit' });
  folder = await mkdtemp(join(tmpdir(), 'muser-vllm-faults-'));
  cleanups.add(() => rm(folder, { recursive: true, force: true }));
  [short, long] = (await writeNeedles(folder, { count: 2, shortest: 600, longest: 8_000 })) as [NeedleFile, NeedleFile];
  const state = join(folder, 'state');
  logs = join(state, 'logs');
  await mkdir(logs, { recursive: true, mode: 0o700 });
  isFull = await fill(logs);
  dev = await Dev.start(state, '--producer', 'vllm');
  cleanups.add(() => dev.destroy());
}, START_MS);

afterAll(() => cleanups.run(), 120_000);

/** A disk of 64 KiB without room for a byte. Only root can make one; without it the other tests stay as they are. */
async function fill(path: string): Promise<boolean> {
  try {
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=64k,mode=700', 'tmpfs', path], { stdio: 'ignore' });
  } catch {
    return false;
  }
  // A process that outlives its system keeps its log open, which would keep the disk.
  cleanups.add(() => execFileSync('umount', ['--lazy', path]));
  await writeFile(join(path, 'filler'), Buffer.alloc(128 << 10)).catch(() => undefined);
  await expect(writeFile(join(path, 'more'), 'x')).rejects.toMatchObject({ code: 'ENOSPC' });
  return true;
}

function startAsking({ file, needle }: NeedleFile): ResultPromise {
  const flags = ['--json', '--state', dev.state, '--timeout', '300', '--remote-prefill', '-f', file];
  return startMuser(['ask', ...flags, needle.question]);
}

async function answerOf(asking: ResultPromise): Promise<Asked> {
  const { exitCode, stdout, stderr } = await asking;
  expect(exitCode, String(stderr)).toBe(0);
  return JSON.parse(String(stdout)) as Asked;
}

/** Every process below the producer, first the worker. */
const workerPids = (): number[] => processesBelow(dev.ready.pids.producer);

/** The producer takes requests again, without anybody's help. */
async function recovered(): Promise<void> {
  const started = performance.now();
  // Each request that meets a producer in trouble makes its decoder wait longer before it tries again.
  await eventually('the producer is healthy', async () => {
    const { stdout } = await muser(['node', 'list', '--json', '--state', dev.state]);
    const { nodes } = JSON.parse(stdout) as { nodes: { role: string; state: string }[] };
    return nodes.some(({ role, state }) => role === 'producer' && state === 'healthy');
  });
  while ((await answerOf(startAsking(short))).prefill !== 'remote') {
    if (performance.now() - started > START_MS) throw new Error('the producer did not come back');
    await delay(1_000);
  }
  process.stderr.write(`remote again after ${((performance.now() - started) / 1_000).toFixed(0)} s\n`);
}

describe('a system on vLLM', () => {
  it('prefills remotely although its disk for logs is full', { timeout: LIMIT_MS }, async ({ skip }) => {
    if (!isFull) skip('only root can mount a disk');
    await recovered();
    for (const name of ['producer.log', 'decoder.log']) expect(readFileSync(join(logs, name), 'utf8')).toBe('');
  });

  // The whole group is stopped: a hung engine alone is found by its steps, which takes longer.
  it.each([
    ['SIGKILL', 1],
    ['SIGSTOP', -1],
  ] as const)(
    'answers right when its worker gets %s in the midst of a prompt, and comes back',
    { timeout: LIMIT_MS },
    async (signal, sign) => {
      const pids = workerPids();
      const [worker = 0] = pids;
      expect(worker).toBeGreaterThan(0);
      const asking = startAsking(long);
      await heard(asking.stderr, /receiving the KV cache/);
      process.kill(sign * worker, signal);
      const { answer, prefill, fallback } = await answerOf(asking);
      process.stderr.write(`${signal}: ${prefill}, ${fallback?.code ?? 'no fallback'}\n`);
      expect(answer).toContain(long.needle.value);
      expect(['local', 'resumed']).toContain(prefill);
      expect(fallback).not.toBeNull();
      await eventually('the old worker is gone', () => !pids.some(isAlive));
      await recovered();
    },
  );

  it('keeps nothing of vLLM when its producer is killed, and answers on', { timeout: LIMIT_MS }, async () => {
    const pids = workerPids();
    expect(pids.length).toBeGreaterThan(1);
    process.kill(dev.ready.pids.producer, 'SIGKILL');
    const { answer, prefill } = await answerOf(startAsking(short));
    expect(answer).toContain(short.needle.value);
    expect(prefill).toBe('local');
    await eventually('every process of vLLM ends', () => !pids.some(isAlive));
    expect((await muser(['node', 'list', '--json', '--state', dev.state])).exitCode).toBe(0);
  });
});
