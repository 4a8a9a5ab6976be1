import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Cell } from './cells.js';
import { whatIsMissing } from './process-faults.js';
import { Questions } from './questions.js';
import type { Result } from './report.js';
import { CellRunner } from './run-cell.js';
import { System, type Backend } from './system.js';

export interface BackendRun {
  readonly backend: Backend;
  readonly cells: readonly Cell[];
  readonly seed: number;
  /** Systems that share the cells. */
  readonly lanes: number;
  readonly signal: AbortSignal;
  readonly onResult: (result: Result) => void;
  readonly say: (text: string) => void;
  /** Systems that run now, for whoever has to end them at once. */
  readonly systems: Set<System>;
}

/** A decoder keeps about two pairs of prompts. */
const DIFFERENT_QUESTIONS = 6;
/** Between the documents of two lanes. */
const SEEDS_OF_A_LANE = 100_000;

/** Runs the cells of one backend, each on one of its systems, which live from cell to cell. */
export async function runBackend(run: BackendRun): Promise<void> {
  const waiting = [...run.cells];
  const lanes = Array.from({ length: Math.min(run.lanes, waiting.length) }, (_, index) => runLane(run, waiting, index));
  const ended = await Promise.allSettled(lanes);
  for (const lane of ended) if (lane.status === 'rejected') throw lane.reason;
}

async function runLane(run: BackendRun, waiting: Cell[], index: number): Promise<void> {
  const { backend, signal } = run;
  const root = await mkdtemp(join(tmpdir(), 'muser-faults-'));
  let isClean = true;
  try {
    const system = await System.start(backend, root, signal);
    run.systems.add(system);
    try {
      const runner = new CellRunner(system, questionsOf(run, system, index), signal);
      await runner.warmUp();
      for (let cell = waiting.shift(); cell !== undefined && !signal.aborted; cell = waiting.shift()) {
        const result = await tryTwice(cell, runner, system, run);
        isClean &&= result.verdict !== 'failed';
        if (!signal.aborted) run.onResult(result);
      }
    } finally {
      await system.close();
      run.systems.delete(system);
    }
  } catch (error) {
    isClean = false;
    throw error;
  } finally {
    if (isClean || signal.aborted) await rm(root, { recursive: true, force: true });
    else run.say(`the logs of a system with failures are in ${root}`);
  }
}

function questionsOf({ backend, seed, signal }: BackendRun, system: System, lane: number): Questions {
  return new Questions({
    seed: seed + lane * SEEDS_OF_A_LANE,
    // vLLM would know a prompt again for the whole run.
    different: backend === 'llama' ? DIFFERENT_QUESTIONS : Number.MAX_SAFE_INTEGER,
    reference: () => system.url('bystander'),
    signal,
  });
}

async function tryTwice(cell: Cell, runner: CellRunner, system: System, { signal, say }: BackendRun): Promise<Result> {
  const first = await tryCell(cell, runner, system, signal);
  if (first.verdict !== 'failed' || signal.aborted) return first;
  say(`        once more: ${cell.id}: ${first.reason ?? ''}`);
  const second = await tryCell(cell, runner, system, signal);
  return { ...second, reason: second.reason ?? first.reason, tries: 2, seconds: first.seconds + second.seconds };
}

async function tryCell(cell: Cell, runner: CellRunner, system: System, signal: AbortSignal): Promise<Result> {
  const { happening } = cell;
  const missing = happening.kind === 'process' ? whatIsMissing(happening.fault, system) : null;
  if (missing !== null) return { cell, verdict: 'not run', outcome: null, reason: missing, tries: 0, seconds: 0 };
  const startedAt = performance.now();
  const seconds = (): number => (performance.now() - startedAt) / 1_000;
  try {
    const outcome = await untilAborted(runner.run(cell), signal);
    return { cell, verdict: 'passed', outcome, reason: null, tries: 1, seconds: seconds() };
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    return { cell, verdict: 'failed', outcome: null, reason, tries: 1, seconds: seconds() };
  }
}

/** Who interrupts does not wait for the rest of a cell. */
async function untilAborted<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  promise.catch(() => undefined);
  signal.throwIfAborted();
  let interrupt = (): void => undefined;
  const interrupted = new Promise<never>((_, reject) => {
    interrupt = () => reject(new Error('interrupted'));
    signal.addEventListener('abort', interrupt, { once: true });
  });
  try {
    return await Promise.race([promise, interrupted]);
  } finally {
    signal.removeEventListener('abort', interrupt);
  }
}
