import { type ErrorCode, MuserError, toMuserError } from '@muser/protocol';
import type { Logger } from '@muser/service-kit';

import { orAborted, pause } from '../abort.js';
import type { BackendHealth } from '../backend/backend.js';
import { groupLives, StuckGroupError } from './process-group.js';
import type { EndCause, VllmWorker, WorkerEnd } from './worker.js';

/**
 * starting: the first start. ready: takes requests. restarting: the worker ended by itself; after a pause a new one
 * starts. unloaded: ended because nothing was to be done; the next request starts it again. error: it ended too often, or
 * for a reason that stays; nothing happens until somebody restarts the producer. closed: over.
 */
export type SupervisorState = 'starting' | 'ready' | 'restarting' | 'unloaded' | 'error' | 'closed';

const HOUR_MS = 3_600_000;

export interface SupervisorOptions {
  /** Starts one worker and waits until it is ready. */
  readonly start: (signal: AbortSignal) => Promise<VllmWorker>;
  /**
   * Pauses before the restarts of one hour; when they are used up, the next failure is the last one. On a GB10, workers
   * that die leak unified memory until a power cycle, so endless restarts would take the host down.
   */
  readonly pausesMs: readonly number[];
  /** The worker ends after so long without a request, to leave its memory to others; null: never. */
  readonly idleUnloadMs: number | null;
  readonly logger: Logger;
}

/** A worker that stays loaded as long as it is held. */
export interface WorkerUse {
  readonly worker: VllmWorker;
  /** May be called more than once. */
  release(): void;
}

/** Keeps one worker running: starts it, restarts it when it ends, but not for ever, and unloads it when it is idle. */
export class WorkerSupervisor {
  readonly #options: SupervisorOptions;
  readonly #stop = new AbortController();
  readonly #failuresAtMs: number[] = [];
  #state: SupervisorState = 'starting';
  #reason = 'the model is being loaded';
  #worker: VllmWorker | null = null;
  #uses = 0;
  #idleTimer: NodeJS.Timeout | null = null;
  #unloading: Promise<void> = Promise.resolve();
  /** The start or restart under way. */
  #loading: Promise<void> | null = null;
  /** Something of an earlier worker could not be killed, so no other one may start. */
  #stuck: StuckGroupError | null = null;

  private constructor(options: SupervisorOptions) {
    this.#options = options;
  }

  /** @throws MuserError when the first start fails: whoever starts the producer is there to see it */
  static async start(options: SupervisorOptions, signal: AbortSignal): Promise<WorkerSupervisor> {
    const supervisor = new WorkerSupervisor(options);
    supervisor.#adopt(await options.start(signal));
    return supervisor;
  }

  get state(): SupervisorState {
    return this.#state;
  }

  get health(): BackendHealth {
    switch (this.#state) {
      case 'ready':
        return { state: 'ready' };
      case 'unloaded':
        return { state: 'ready', unloaded: true };
      case 'starting':
      case 'restarting':
        return { state: 'starting', reason: this.#reason };
      case 'error':
      case 'closed':
        return { state: 'error', reason: this.#reason };
    }
  }

  /** Of the worker and its ranks; empty while none runs. */
  get workerPids(): readonly number[] {
    return this.#worker?.pids ?? [];
  }

  /** The worker when it is ready; loads it when it was unloaded. @throws MuserError UNAVAILABLE, or the signal's reason */
  async use(signal: AbortSignal): Promise<WorkerUse> {
    this.#hold();
    let released = false;
    const release = (): void => {
      if (!released) this.#letGo();
      released = true;
    };
    try {
      if (this.#state === 'unloaded') this.#load('the model is being loaded again', 0);
      // Whoever asked while it was unloaded waits; whoever meets a restart is better served elsewhere.
      if (this.#state === 'starting' && this.#loading !== null) await orAborted(this.#loading, signal);
      if (this.#worker === null) throw new MuserError('UNAVAILABLE', this.#reason);
      return { worker: this.#worker, release };
    } catch (error) {
      release();
      throw error;
    }
  }

  /** Resolves when nothing of a worker is left. @throws StuckGroupError when that cannot be reached */
  async close(): Promise<void> {
    this.#turn('closed', 'the producer is closing');
    this.#stop.abort(new MuserError('CANCELLED', 'the producer is closing'));
    this.#clearIdleTimer();
    await Promise.all([this.#loading, this.#unloading]);
    if (this.#worker !== null) await this.#endWorker(this.#worker);
    this.#worker = null;
    if (this.#stuck !== null && groupLives(this.#stuck.leader)) throw this.#stuck;
  }

  #adopt(worker: VllmWorker): void {
    this.#worker = worker;
    this.#turn('ready', '');
    worker.failed.addEventListener('abort', () => this.#lose(worker), { once: true });
    if (worker.failed.aborted) this.#lose(worker);
    this.#watchIdle();
  }

  /** At once: nobody gets this worker any more. The next one starts when nothing of it is left. */
  #lose(worker: VllmWorker): void {
    if (this.#worker !== worker) return;
    this.#worker = null;
    if (this.#state !== 'ready') return;
    this.#turn('restarting', toMuserError(worker.failed.reason, 'ENGINE_FAILED').message);
    const loading = worker.ended.then((end) => this.#recover(end));
    this.#track(loading);
  }

  async #recover(end: WorkerEnd): Promise<void> {
    // Also while closing, so that nobody takes its memory for free.
    if (end.error instanceof StuckGroupError) this.#stuck = end.error;
    if (this.#stop.signal.aborted) return;
    const { cause, error, permanent } = end;
    const nowMs = performance.now();
    this.#failuresAtMs.push(nowMs);
    while ((this.#failuresAtMs[0] ?? nowMs) <= nowMs - HOUR_MS) this.#failuresAtMs.shift();
    const failures = this.#failuresAtMs.length;
    const pauseMs = this.#options.pausesMs[failures - 1];
    const told = { cause, code: error.code, reason: error.message, failures, advice: ADVICE[cause] };
    this.#options.logger.error(told, 'the vLLM worker ended');
    if (permanent || pauseMs === undefined) return this.#giveUp(end, permanent ? null : failures);
    await this.#startAgain(error.message, pauseMs);
  }

  #load(reason: string, pauseMs: number): void {
    this.#turn('starting', reason);
    this.#track(this.#startAgain(reason, pauseMs));
  }

  async #startAgain(reason: string, pauseMs: number): Promise<void> {
    await Promise.all([pause(pauseMs, this.#stop.signal), this.#unloading]);
    if (this.#stop.signal.aborted || this.#stuck !== null) return;
    try {
      this.#reason = `${reason}; a new worker is starting`;
      const worker = await this.#options.start(this.#stop.signal);
      if (this.#stop.signal.aborted) await worker.close();
      else this.#adopt(worker);
    } catch (thrown) {
      await this.#recover(endOf(toMuserError(thrown, 'ENGINE_FAILED')));
    }
  }

  #giveUp({ cause, error }: WorkerEnd, failures: number | null): void {
    const advice =
      failures === null
        ? `${ADVICE[cause]} and restart the producer`
        : `${failures} failures within an hour are too many to go on: ${ADVICE[cause]}; then restart the producer ` +
          '(power-cycle a GB10 whose memory does not come back)';
    this.#turn('error', `${error.message}; ${advice}`);
    this.#options.logger.fatal({ code: error.code, reason: this.#reason }, 'the vLLM worker is given up');
  }

  #turn(state: SupervisorState, reason: string): void {
    if (this.#state === 'closed') return;
    this.#state = state;
    this.#reason = reason;
  }

  #track(loading: Promise<void>): void {
    this.#loading = loading;
    void loading.finally(() => {
      if (this.#loading === loading) this.#loading = null;
    });
  }

  #hold(): void {
    this.#uses += 1;
    this.#clearIdleTimer();
  }

  #letGo(): void {
    this.#uses -= 1;
    this.#watchIdle();
  }

  #watchIdle(): void {
    const { idleUnloadMs } = this.#options;
    this.#clearIdleTimer();
    if (idleUnloadMs === null || this.#uses > 0 || this.#state !== 'ready') return;
    this.#idleTimer = setTimeout(() => this.#unload(), idleUnloadMs);
  }

  #unload(): void {
    const worker = this.#worker;
    if (worker === null) return;
    this.#worker = null;
    this.#turn('unloaded', 'the model is unloaded');
    this.#options.logger.info('the vLLM worker is unloaded: there was nothing to do');
    // A request that comes now must not start a second worker beside one that still holds its memory.
    this.#unloading = this.#endWorker(worker);
  }

  /** Never rejects. */
  async #endWorker(worker: VllmWorker): Promise<void> {
    await worker.close().catch((thrown: unknown) => this.#recover(endOf(toMuserError(thrown, 'ENGINE_FAILED'))));
  }

  #clearIdleTimer(): void {
    if (this.#idleTimer !== null) clearTimeout(this.#idleTimer);
    this.#idleTimer = null;
  }
}

/** What an operator can do. */
const ADVICE: Readonly<Record<EndCause, string>> = {
  closed: 'nothing is wrong',
  died: 'its last lines in the log of the producer say why',
  hung: 'look whether the GPU answers; raise vllm.hangLimitMs if steps take that long',
  'out-of-memory':
    'lower vllm.kvCacheBytes, maxPromptTokens or chunkTokens, or end what else needs memory on this machine',
  broken: 'report it with the log of the producer',
  refused: 'correct what it names',
  late: 'the log of the producer says how far it came; raise vllm.startLimitMs if it only needs more time',
  stuck: "look in the kernel's log for what it waits for (power-cycle a GB10 whose driver hangs)",
};

/** What a start failed with, as the causes of ends. */
const CAUSES: Readonly<Partial<Record<ErrorCode, EndCause>>> = {
  OUT_OF_MEMORY: 'out-of-memory',
  DEADLINE_EXCEEDED: 'late',
};

/** A start that failed so would fail again. */
const PERMANENT: ReadonlySet<string> = new Set(['CONFIG_INVALID', 'MODEL_UNSUPPORTED', 'MODEL_MISMATCH']);

/** How it is counted that a worker did not start, or could not be ended. */
function endOf(error: MuserError): WorkerEnd {
  if (error instanceof StuckGroupError) return { cause: 'stuck', error, permanent: true };
  const permanent = PERMANENT.has(error.code);
  return { cause: permanent ? 'refused' : (CAUSES[error.code] ?? 'died'), error, permanent };
}
