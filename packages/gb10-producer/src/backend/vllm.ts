import { fingerprintOf, type Geometry, modelNameOf, MuserError } from '@muser/protocol';
import type { Logger } from '@muser/service-kit';

import type { RankLink } from '../bridge/rank-link.js';
import type { MilestoneName, ReadyHeader } from '../bridge/schema.js';
import { WorkerSupervisor, type WorkerUse } from '../bridge/supervisor.js';
import { VllmWorker, type WorkerListener } from '../bridge/worker.js';
import type {
  BackendHealth,
  BackendLimits,
  BackendModel,
  BackendStats,
  EngineFacts,
  PrefillBackend,
  PrefillRun,
  PrefillTask,
} from './backend.js';
import { distinctRanks } from './rank-rows.js';
import { SuspectPrompts } from './suspect-prompts.js';
import { VllmRun } from './vllm-run.js';

export interface VllmOptions {
  /** Folder of the checkpoint. */
  readonly modelPath: string;
  /** checkpointDigest of it. */
  readonly modelDigest: Uint8Array;
  /** The interpreter of the environment that has vLLM. */
  readonly python: string;
  /** What it runs. */
  readonly args: readonly string[];
  /** What the worker is told; see `settings` in bridge_schema.json. */
  readonly settings: Readonly<Record<string, unknown>>;
  /** Where it is written down which worker runs; null: nowhere. */
  readonly workerFile: string | null;
  readonly maxPromptTokens: number;
  readonly maxConcurrent: number;
  readonly startLimitMs: number;
  readonly hangLimitMs: number;
  readonly restartPausesMs: readonly number[];
  readonly idleUnloadMs: number | null;
  /** Prefills are refused while less than this is free. */
  readonly memoryFloorBytes: number;
  readonly onMilestone: (name: MilestoneName, milliseconds: number) => void;
  readonly logger: Logger;
}

/** vLLM in processes of its own, on the other end of a bridge of two Unix sockets. */
export class VllmBackend implements PrefillBackend {
  readonly name = 'vllm';
  readonly model: BackendModel;
  readonly engine: EngineFacts;
  readonly limits: BackendLimits;
  readonly #options: VllmOptions;
  readonly #supervisor: WorkerSupervisor;
  readonly #runs: Map<string, VllmRun>;
  readonly #ranks = new WeakMap<VllmWorker, readonly RankLink[]>();
  readonly #suspects = new SuspectPrompts();
  #active = 0;
  #unreleasedChunks = 0;

  private constructor(
    options: VllmOptions,
    offer: ReadyHeader,
    supervisor: WorkerSupervisor,
    runs: Map<string, VllmRun>,
  ) {
    this.#options = options;
    this.#supervisor = supervisor;
    this.#runs = runs;
    this.model = modelOf(options, offer);
    this.engine = { version: offer.vllmVersion, cacheLayout: `${offer.backendName}, ${offer.layout}` };
    this.limits = {
      maxPromptTokens: Math.min(options.maxPromptTokens, offer.maxPromptTokens),
      maxConcurrent: options.maxConcurrent,
      chunkTokens: offer.chunkTokens,
      wireTypes: offer.wireTypes,
    };
  }

  /** @throws MuserError why the worker did not start, or the signal's reason */
  static async open(options: VllmOptions, signal: AbortSignal): Promise<VllmBackend> {
    const runs = new Map<string, VllmRun>();
    const listener = listen(options, runs);
    let first: ReadyHeader | null = null;
    const supervisor = await WorkerSupervisor.start(
      {
        pausesMs: options.restartPausesMs,
        idleUnloadMs: options.idleUnloadMs,
        logger: options.logger,
        start: async (stop) => {
          const worker = await VllmWorker.start(options, listener, stop);
          try {
            first ??= worker.offer;
            checkOffer(options, worker, first);
          } catch (error) {
            await worker.close();
            throw error;
          }
          return worker;
        },
      },
      signal,
    );
    if (first === null) throw new MuserError('INTERNAL', 'a worker started without an offer');
    return new VllmBackend(options, first, supervisor, runs);
  }

  get health(): BackendHealth {
    return this.#supervisor.health;
  }

  /** Process ids of the worker and its ranks, for whoever tests what happens when they end; empty while none runs. */
  get workerPids(): readonly number[] {
    return this.#supervisor.workerPids;
  }

  prefill(task: PrefillTask): PrefillRun {
    return new VllmRun(task, {
      backend: this,
      stopLimitMs: this.#options.hangLimitMs,
      admit: (wanted) => this.#admit(wanted),
      useWorker: (run, signal) => this.#useWorker(run, signal),
      ranksOf: ({ worker }) => this.#ranksOf(worker),
      onComputed: (failed) => this.#computed(task, failed),
      onSettled: ({ id }) => this.#runs.delete(id),
      countChunk: (change) => (this.#unreleasedChunks += change),
    });
  }

  stats(): BackendStats {
    const reservedTokens = [...this.#runs.values()].reduce((sum, { task }) => sum + task.tokens.length, 0);
    return { activePrefills: this.#active, reservedTokens, unreleasedChunks: this.#unreleasedChunks };
  }

  async close(): Promise<void> {
    const closing = new MuserError('CANCELLED', 'the producer is closing');
    const runs = [...this.#runs.values()];
    for (const run of runs) run.cancel(closing);
    await Promise.all(runs.map((run) => run.computed));
    await this.#supervisor.close();
  }

  #admit({ tokens }: PrefillTask): void {
    const { maxConcurrent } = this.limits;
    if (this.#active >= maxConcurrent) {
      throw new MuserError('CONTEXT_FULL', `${maxConcurrent} prefills compute already`);
    }
    this.#suspects.check(tokens);
    this.#active += 1;
  }

  async #useWorker(run: VllmRun, signal: AbortSignal): Promise<WorkerUse> {
    const use = await this.#supervisor.use(signal);
    const { freeMemoryBytes } = use.worker;
    const { memoryFloorBytes } = this.#options;
    if (freeMemoryBytes < memoryFloorBytes) {
      use.release();
      const message = `${freeMemoryBytes} bytes of memory are free, nothing is taken on below ${memoryFloorBytes}`;
      throw new MuserError('RESOURCE_EXHAUSTED', message, { details: { freeMemoryBytes, memoryFloorBytes } });
    }
    this.#runs.set(run.id, run);
    return use;
  }

  #ranksOf(worker: VllmWorker): readonly RankLink[] {
    const known = this.#ranks.get(worker) ?? distinctRanks(this.model.geometry, worker.ranks);
    this.#ranks.set(worker, known);
    return known;
  }

  #computed({ tokens }: PrefillTask, failed: VllmWorker | null): void {
    this.#active -= 1;
    if (failed === null) return;
    const failures = this.#suspects.blame(tokens, failed.id);
    this.#options.logger.warn({ promptTokens: tokens.length, failures }, 'the vLLM worker ended during a prefill');
  }
}

function listen(options: VllmOptions, runs: ReadonlyMap<string, VllmRun>): WorkerListener {
  // What comes for a run that is over crossed our word that it is.
  return {
    onMilestone: (name, milliseconds) => {
      options.logger.info({ milestone: name, ms: milliseconds }, 'the vLLM worker starts');
      options.onMilestone(name, milliseconds);
    },
    onFinished: (header) => runs.get(header.id)?.onFinished(header),
    onChunk: (rank, header) => runs.get(header.id)?.onChunk(rank, header),
    onEnded: (_, { id, reason }) => runs.get(id)?.onEnded(reason),
  };
}

function modelOf({ modelPath, modelDigest }: VllmOptions, offer: ReadyHeader): BackendModel {
  const geometry: Geometry = {
    ...offer.geometry,
    // GGUF files hold it as f32, so that is how precisely both sides know it.
    ropeBase: Math.fround(offer.geometry.ropeBase),
  };
  const tokenizerSha256 = Buffer.from(offer.tokenizerSha256, 'hex');
  return {
    geometry,
    identity: { name: modelNameOf(modelPath), modelDigest, fingerprint: fingerprintOf({ geometry, tokenizerSha256 }) },
  };
}

/** @throws MuserError MODEL_UNSUPPORTED; MODEL_MISMATCH when the folder holds another model than at the first start */
function checkOffer(options: VllmOptions, worker: VllmWorker, first: ReadyHeader): void {
  const { offer } = worker;
  for (const warning of offer.warnings) options.logger.warn({ warning }, 'the vLLM worker warns');
  const { backendName, layout, vllmVersion, kvBlocksBytes } = offer;
  options.logger.info({ vllmVersion, attention: backendName, layout, kvBlocksBytes }, 'the vLLM worker is ready');
  const model = modelOf(options, offer);
  distinctRanks(model.geometry, worker.ranks);
  const known = modelOf(options, first).identity.fingerprint;
  const same = Buffer.from(model.identity.fingerprint).equals(known) && offer.chunkTokens === first.chunkTokens;
  if (!same)
    throw new MuserError('MODEL_MISMATCH', 'the model folder holds another model than when it was first loaded');
}
