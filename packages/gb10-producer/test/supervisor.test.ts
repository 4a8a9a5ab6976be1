// Real child processes that die, hang and babble: requests fail at once, a new worker comes, but not for ever.
import { spawn } from 'node:child_process';
import { accessSync, constants, existsSync } from 'node:fs';
import { mkdtemp, readFile, rm, rmdir, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { MuserError } from '@muser/protocol';
import { createLogger } from '@muser/service-kit';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';

import { VllmBackend, type VllmOptions } from '../src/backend/vllm.js';
import { consume, ready, startRun as start } from './support/fake-runs.js';
import { fakeOptions, openFake } from './support/fake-vllm.js';
import { until } from './support/test-bed.js';

const CGROUPS = '/sys/fs/cgroup/memory';

function hasCgroups(): boolean {
  try {
    accessSync(join(CGROUPS, 'memory.limit_in_bytes'), constants.W_OK);
    return true;
  } catch {
    return false;
  }
}

let folder: string;
let backend: VllmBackend | null;
const pidsSeen = new Set<number>();

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'muser-supervisor-'));
  backend = null;
});

afterEach(async () => {
  for (const pid of backend?.workerPids ?? []) pidsSeen.add(pid);
  await backend?.close();
  await rm(folder, { recursive: true });
  for (const pid of pidsSeen) expect(isRunning(pid), `process ${pid}`).toBe(false);
  pidsSeen.clear();
});

function isRunning(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

async function open(settings: Record<string, unknown>, more: Partial<VllmOptions> = {}): Promise<VllmBackend> {
  backend = await openFake(settings, more);
  for (const pid of backend.workerPids) pidsSeen.add(pid);
  return backend;
}

/** The fault happens once, in the first worker that gets so far. */
const once = (): { faultOnce: string } => ({ faultOnce: join(folder, 'done') });

describe('a worker that ends', () => {
  it('by not stopping a prefill that was cancelled is ended, and the place is free again', async () => {
    const vllm = await open({ fault: 'deaf:middle', ...once() }, { hangLimitMs: 500 });
    const [first] = vllm.workerPids;
    const controller = new AbortController();
    const run = start(vllm, 1, 700, controller.signal);
    const consumed = consume(run);
    await until(() => existsSync(join(folder, 'done')));
    const reason = new MuserError('CANCELLED', 'test');
    controller.abort(reason);
    await expect(consumed).rejects.toBe(reason);
    await run.computed;
    await until(() => vllm.workerPids.length > 0 && vllm.workerPids[0] !== first);
    expect(await consume(start(vllm, 2))).toBe(699);
  });

  it('fails all of its requests at once, and who comes meanwhile is told that it restarts', async () => {
    const vllm = await open({ fault: 'kill:chunk', ...once() }, { restartPausesMs: [60_000] });
    const [first, second] = await Promise.allSettled([consume(start(vllm, 1)), consume(start(vllm, 2))]);
    expect([first.status, second.status]).toEqual(['rejected', 'rejected']);
    expect(vllm.health).toEqual({ state: 'starting', reason: expect.stringContaining('SIGKILL') as string });
    await expect(consume(start(vllm))).rejects.toMatchObject({ code: 'UNAVAILABLE' });
  });

  // fault: kernel-traps
  it('too often is given up, with advice', async () => {
    const vllm = await open({ fault: 'exit:prefill' }, { restartPausesMs: [0, 0] });
    for (const seed of [1, 2, 3]) {
      await ready(vllm);
      await expect(consume(start(vllm, seed))).rejects.toMatchObject({ code: 'ENGINE_FAILED' });
    }
    await until(() => vllm.health.state === 'error');
    expect(vllm.health).toEqual({
      state: 'error',
      reason: expect.stringMatching(/3 failures.*restart the producer/) as string,
    });
    await expect(consume(start(vllm, 4))).rejects.toMatchObject({ code: 'UNAVAILABLE' });
  });

  it.each(['exit:prefill', 'kill:middle', 'engine:middle', 'engineoom:middle', 'garbage-data:middle'])(
    'twice during the same prompt (%s) is not given that prompt again',
    async (fault) => {
      const vllm = await open({ fault });
      for (let round = 0; round < 2; round += 1) {
        await ready(vllm);
        await expect(consume(start(vllm, 7))).rejects.toMatchObject({
          message: expect.stringContaining('the vLLM worker') as string,
        });
      }
      await ready(vllm);
      await expect(consume(start(vllm, 7))).rejects.toMatchObject({
        code: 'ENGINE_FAILED',
        message: expect.stringContaining('not tried again') as string,
      });
      expect(vllm.health.state).toBe('ready');
    },
  );

  it('is blamed on a prompt once, however many were under way with it', async () => {
    const vllm = await open({ fault: 'kill:queued', ...once() });
    const outcomes = await Promise.allSettled([1, 2].map(() => consume(start(vllm, 7, 2000))));
    expect(outcomes.map(({ status }) => status)).toEqual(['rejected', 'rejected']);
    await ready(vllm);
    expect(await consume(start(vllm, 7, 2000))).toBe(1999);
  });

  // fault: kernel-traps
  it.each([
    ['exit:middle', 'died', 'ENGINE_FAILED', /last lines/],
    ['engine:middle', 'died', 'ENGINE_FAILED', /last lines/],
    ['stop:middle', 'hung', 'ENGINE_FAILED', /vllm.hangLimitMs/],
    ['deaf:middle', 'hung', 'ENGINE_FAILED', /vllm.hangLimitMs/],
    ['oom:middle', 'out-of-memory', 'OUT_OF_MEMORY', /vllm.kvCacheBytes/],
    ['engineoom:middle', 'out-of-memory', 'OUT_OF_MEMORY', /vllm.kvCacheBytes/],
    ['garbage-data:middle', 'broken', 'ENGINE_FAILED', /report it/],
    ['oom:start', 'out-of-memory', 'OUT_OF_MEMORY', /vllm.kvCacheBytes/],
    ['stop:start', 'late', 'DEADLINE_EXCEEDED', /vllm.startLimitMs/],
    ['refuse:start', 'refused', 'MODEL_UNSUPPORTED', /correct/],
  ])('by %s is logged as %s, with a code and what to do', async (fault, cause, code, advice) => {
    const ends: object[] = [];
    const logger = createLogger('test', 'silent');
    logger.error = (end: object) => void ends.push(end);
    const settings: Record<string, unknown> = { ...once() };
    const vllm = await open(settings, { logger, hangLimitMs: 1_000, startLimitMs: 4_000, restartPausesMs: [0, 0] });
    const [worker = 0] = vllm.workerPids;
    settings['fault'] = fault;
    process.kill(worker, 'SIGKILL');
    await until(() => vllm.workerPids[0] !== worker && (vllm.workerPids.length > 0 || vllm.health.state === 'error'));
    if (!fault.endsWith('start')) {
      const signal = AbortSignal.timeout(500);
      await consume(start(vllm, 1, 700, signal)).catch(() => undefined);
    }
    await until(() => ends.some((end) => 'cause' in end && end.cause === cause && 'code' in end && end.code === code));
    const end = ends.find((one) => 'cause' in one && one.cause === cause && 'code' in one && one.code === code);
    expect(end).toMatchObject({
      reason: expect.any(String) as string,
      advice: expect.stringMatching(advice) as string,
    });
    const { state, ...rest } = vllm.health;
    if (cause === 'refused')
      expect(rest).toMatchObject({ reason: expect.stringContaining('restart the producer') as string });
    else expect(state).not.toBe('error');
  });

  // As root, where the kernel still has memory cgroups of version 1.
  it.skipIf(!hasCgroups())('by the kernel, for want of memory, is known for what it is', async () => {
    const starveIn = await mkdtemp(`${CGROUPS}/muser-test-`);
    await writeFile(join(starveIn, 'memory.limit_in_bytes'), '32M');
    try {
      const vllm = await open({ fault: 'starve:middle', starveIn, ...once() });
      await expect(consume(start(vllm))).rejects.toMatchObject({
        code: 'OUT_OF_MEMORY',
        message: expect.stringContaining('ended by SIGKILL') as string,
      });
      await ready(vllm);
      expect(await consume(start(vllm, 2))).toBe(699);
    } finally {
      await rmdir(starveIn);
    }
  });
});

describe('a start', () => {
  it('tells its milestones', async () => {
    const milestones: string[] = [];
    await open({}, { onMilestone: (name, milliseconds) => milestones.push(`${name} ${milliseconds}`) });
    expect(milestones).toEqual(['weights 5']);
  });

  const failures: [string, Partial<VllmOptions>, string, RegExp][] = [
    ['exit:start', {}, 'ENGINE_FAILED', /ended with code 3/],
    ['oom:start', {}, 'OUT_OF_MEMORY', /memory/],
    ['late:start', { startLimitMs: 700 }, 'DEADLINE_EXCEEDED', /not ready within 700 ms/],
    ['refuse:start', {}, 'MODEL_UNSUPPORTED', /not this one/],
    ['garbage-control:start', {}, 'ENGINE_FAILED', /control/],
    ['engineoom:start', {}, 'OUT_OF_MEMORY', /ran out of memory/],
    ['engineslow:warm_up', {}, 'ENGINE_FAILED', /said: not this one/],
    ['', { python: '/nonexistent/python' }, 'ENGINE_FAILED', /cannot be started \(ENOENT\)/],
    ['', { args: ['-c', 'pass'] }, 'ENGINE_FAILED', /ended with code 0/],
  ];
  it.each(failures)('that fails (%s, %o) says why', async (fault, more, code, message) => {
    const opened = open({ fault }, more);
    await expect(opened).rejects.toMatchObject({ code, message: expect.stringMatching(message) as string });
  });

  it('that fails when it is done again is tried again', async () => {
    const settings: Record<string, unknown> = { ...once() };
    const vllm = await open(settings);
    const [first = 0] = vllm.workerPids;
    settings['fault'] = 'exit:start';
    process.kill(first, 'SIGKILL');
    await until(() => existsSync(join(folder, 'done')));
    await ready(vllm);
    expect(await consume(start(vllm))).toBe(699);
  });

  it('is stopped with the producer', async () => {
    const stop = new AbortController();
    const opened = VllmBackend.open(fakeOptions({ fault: 'late:start' }), stop.signal);
    stop.abort(new Error('stop'));
    await expect(opened).rejects.toThrow('stop');
  });
});

describe('a worker without work', () => {
  it('is unloaded, counts as ready, and comes back for the next request', async () => {
    const vllm = await open({}, { idleUnloadMs: 50 });
    const [first] = vllm.workerPids;
    await until(() => vllm.workerPids.length === 0);
    expect(vllm.health).toEqual({ state: 'ready', unloaded: true });
    expect(await consume(start(vllm))).toBe(699);
    expect(vllm.workerPids[0]).not.toBe(first);
  });

  it('stays while somebody still reads', async () => {
    const vllm = await open({}, { idleUnloadMs: 1 });
    const run = start(vllm);
    const held = [];
    for await (const chunk of run) held.push(chunk);
    await new Promise((resolve) => setTimeout(resolve, 20));
    expect(vllm.workerPids).toHaveLength(1);
    for (const chunk of held) chunk.release();
    await until(() => vllm.workerPids.length === 0);
  });
});

describe('memory', () => {
  // fault: host-out-of-memory
  it('below the floor refuses', async () => {
    const vllm = await open({}, { memoryFloorBytes: 2 ** 41 });
    // The first heartbeat tells how much is free.
    let error: unknown;
    while (error === undefined)
      error = await consume(start(vllm)).then(
        () => undefined,
        (reason: unknown) => reason,
      );
    expect(error).toMatchObject({ code: 'RESOURCE_EXHAUSTED' });
    expect(vllm.health.state).toBe('ready');
  });
});

describe('a worker that an earlier producer has left', () => {
  const workerFile = (): string => join(folder, 'vllm-worker.json');

  it('is ended before another one starts, also when it hangs', async () => {
    const earlier = await openFake({}, { workerFile: workerFile(), restartPausesMs: [], hangLimitMs: 60_000 });
    const [worker = 0] = earlier.workerPids;
    process.kill(worker, 'SIGSTOP');
    await open({}, { workerFile: workerFile() });
    expect(isRunning(worker)).toBe(false);
    await until(() => earlier.health.state === 'error');
    await earlier.close();
  });

  it('is not mistaken for a process that has its number now', async () => {
    const other = spawn('sleep', ['600'], { detached: true, stdio: 'ignore' });
    const boot = (await readFile('/proc/sys/kernel/random/boot_id', 'utf8')).trim();
    try {
      for (const record of [
        { boot, pid: other.pid, startTime: 1 },
        { boot: 'another', pid: other.pid, startTime: 1 },
      ]) {
        await writeFile(workerFile(), JSON.stringify(record));
        await (await open({}, { workerFile: workerFile() })).close();
        expect(isRunning(other.pid ?? 0)).toBe(true);
      }
    } finally {
      other.kill('SIGKILL');
    }
  });

  it.each(['', '{', '{"boot":"b","pid":-1,"startTime":0}', '{"boot":"b","pid":0,"startTime":0}'])(
    'is unknown when its record is damaged (%j)',
    async (text) => {
      await writeFile(workerFile(), text);
      await open({}, { workerFile: workerFile() });
      expect(JSON.parse(await readFile(workerFile(), 'utf8'))).toMatchObject({ pid: backend?.workerPids[0] });
    },
  );
});
