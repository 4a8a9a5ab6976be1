// Every way in which a worker can fail, in every phase of its life: who waits is told at once, the next request is served
// by a new worker, without anybody's help, and only when nothing of the old one is left.
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { type ErrorCode, MuserError } from '@muser/protocol';
import { describe, expect, it } from 'vitest';

import type { VllmBackend, VllmOptions } from '../src/backend/vllm.js';
import { consume, ready, replaced, startRun, wrongRow } from './support/fake-runs.js';
import { openFake } from './support/fake-vllm.js';
import { until } from './support/test-bed.js';

const IN_A_START = ['start', 'weights', 'kv_cache', 'warm_up'];
const WITH_A_RUN = ['queued', 'prefill', 'chunk', 'middle', 'last', 'read', 'sending'];
const PHASES = [...IN_A_START, 'idle', ...WITH_A_RUN, 'done'];
/** Of the phases that do the same for such a fault, one each. Before `kv_cache` no rank has dialled the data link. */
const TELLING = ['weights', 'idle', 'middle', 'done'];
const OF_SOCKETS = ['kv_cache', 'idle', 'chunk', 'sending', 'done'];

const CONTROL_LOST = /(?:closed|broke) its (?:control|data \(rank 0\)) link|ended with code 0/;

/** What is wrong, and what a run that meets it fails with. */
const FAULTS: Readonly<Record<string, readonly [ErrorCode, RegExp]>> = {
  kill: ['ENGINE_FAILED', /ended by SIGKILL/],
  exit: ['ENGINE_FAILED', /ended with code 3/],
  stop: ['ENGINE_FAILED', /hangs: no heartbeat/],
  oom: ['OUT_OF_MEMORY', /ran out of memory and ended with code 1/],
  engine: ['ENGINE_FAILED', /not this one/],
  engineoom: ['OUT_OF_MEMORY', /ran out of memory and said/],
  'garbage-control': ['ENGINE_FAILED', /broke its control link: frame of 4294967295 bytes/],
  'garbage-data': ['ENGINE_FAILED', /broke its data \(rank 0\) link: /],
  // Without a control link a worker ends in good order: whichever of its sockets or its end is noticed first.
  'cut-control': ['ENGINE_FAILED', CONTROL_LOST],
  'cut-data': ['ENGINE_FAILED', /broke its data \(rank 0\) link: /],
  'half-control': ['ENGINE_FAILED', CONTROL_LOST],
  'half-data': ['ENGINE_FAILED', /(?:closed|broke) its data \(rank 0\) link/],
};

const cells = (faults: readonly string[], phases: readonly string[]): [string, string][] =>
  faults.flatMap((fault) => phases.map((phase): [string, string] => [fault, phase]));

interface Bed {
  readonly vllm: VllmBackend;
  /** What later workers are told. */
  readonly settings: Record<string, unknown>;
}

/** The fault happens once. Afterwards nothing may be left: of any worker, and of its socket folders. */
async function withFault(fault: string, phase: string, more: Partial<VllmOptions>, test: (bed: Bed) => Promise<void>) {
  const folder = await mkdtemp(join(tmpdir(), 'muser-faults-'));
  const family = join(folder, 'family');
  const settings: Record<string, unknown> = { family, faultOnce: join(folder, 'done') };
  // A start that fails the first time is its starter's business: here it is that of the next worker.
  if (!IN_A_START.includes(phase)) settings['fault'] = `${fault}:${phase}`;
  const vllm = await openFake(settings, more);
  try {
    await test({ vllm, settings });
    await until(() => vllm.stats().activePrefills === 0);
    expectNothingHeld(vllm);
  } finally {
    await vllm.close();
    const pids = (await readFile(family, 'utf8')).trim().split('\n');
    await rm(folder, { recursive: true });
    for (const pid of pids) expectGone(pid);
  }
}

function expectNothingHeld(vllm: VllmBackend): void {
  const { activePrefills, reservedTokens, unreleasedChunks } = vllm.stats();
  if (activePrefills + reservedTokens + unreleasedChunks > 0) throw new Error(JSON.stringify(vllm.stats()));
}

function expectGone(pid: string): void {
  if (!/^\d+$/.test(pid)) throw new Error(`a worker started while one before it was alive`);
  try {
    process.kill(Number(pid), 0);
  } catch {
    return;
  }
  throw new Error(`worker ${pid} is alive`);
}

/** Brings the fault about. Resolves to what the runs that met it failed with. */
async function meet({ vllm, settings }: Bed, fault: string, phase: string): Promise<unknown[]> {
  if (IN_A_START.includes(phase)) {
    const [first = 0] = vllm.workerPids;
    settings['fault'] = `${fault}:${phase}`;
    process.kill(first, 'SIGKILL');
    await replaced(vllm, first);
    return [];
  }
  if (phase === 'idle') return [];
  const runs = phase === 'queued' ? [startRun(vllm, 1, 2000), startRun(vllm, 2)] : [startRun(vllm)];
  const outcomes = await Promise.allSettled(runs.map((run) => consume(run)));
  return outcomes.map((outcome): unknown => (outcome.status === 'rejected' ? outcome.reason : null));
}

describe.concurrent('a worker', () => {
  const all = Object.keys(FAULTS);
  const table = [
    ...cells(['kill'], PHASES),
    // In a start, only the start's own limit tells a worker that is stopped from one that loads: see "a start".
    ...cells(['stop'], PHASES.slice(PHASES.indexOf('idle'))),
    ...cells(['exit', 'oom', 'engine', 'engineoom'], TELLING),
    ...cells(['garbage-control', 'cut-control', 'half-control'], ['start', ...OF_SOCKETS]),
    ...cells(['garbage-data', 'cut-data', 'half-data'], OF_SOCKETS),
  ];

  it('has no fault without a cell', ({ expect }) => {
    expect(new Set(table.map(([fault]) => fault))).toEqual(new Set(all));
  });

  it.for(table)(
    'that fails by %s in phase %s is replaced',
    { timeout: 120_000 },
    async ([fault, phase], { expect }) => {
      const [code, message] = FAULTS[fault] as readonly [ErrorCode, RegExp];
      await withFault(fault, phase, { hangLimitMs: fault === 'stop' ? 1_000 : 20_000 }, async (bed) => {
        const [first = 0] = bed.vllm.workerPids;
        const errors = await meet(bed, fault, phase);
        if (WITH_A_RUN.includes(phase)) {
          for (const error of errors) {
            expect(error).toBeInstanceOf(MuserError);
            expect(error).toMatchObject({ code, message: expect.stringMatching(message) as string });
          }
        } else expect(errors.filter((error) => error !== null)).toEqual([]);
        await replaced(bed.vllm, first);
        // One that fails in its last moment before it is ready may get a request all the same.
        const served = await wrongRow(bed.vllm, 3).catch(() => ready(bed.vllm).then(() => wrongRow(bed.vllm, 3)));
        expect(served).toBeNull();
      });
    },
  );
});

describe('a worker', () => {
  it('that is stopped and goes on in time is not replaced', async () => {
    await withFault('none', 'never', {}, async ({ vllm }) => {
      const [worker = 0] = vllm.workerPids;
      const progress: number[] = [];
      const run = startRun(vllm, 1, 2000);
      let stopped = false;
      for await (const chunk of run) {
        progress.push(chunk.end);
        chunk.release();
        if (stopped) continue;
        stopped = true;
        process.kill(worker, 'SIGSTOP');
        setTimeout(() => process.kill(worker, 'SIGCONT'), 300);
      }
      expect(progress.at(-1)).toBe(1999);
      expect(vllm.workerPids[0]).toBe(worker);
    });
  });
});
