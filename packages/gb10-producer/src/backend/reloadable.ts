import { MuserError } from '@muser/protocol';

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
import { ChunkQueue } from './chunk-queue.js';

/** What can be said of a backend while its model is not loaded. */
export type BackendDescription = Pick<PrefillBackend, 'name' | 'model' | 'engine' | 'limits'>;

/** Opens the engine. What it has started is gone again when it rejects, also after the signal's abort. */
export type OpenBackend = (signal: AbortSignal) => Promise<PrefillBackend>;

const UNLOADED: BackendStats = { activePrefills: 0, reservedTokens: 0, unreleasedChunks: 0 };

/**
 * A backend that can give all of its engine's memory back and load it again, whatever the engine is: it closes the one
 * that it has and opens a new one. `load` and `unload` must not overlap.
 */
export class ReloadableBackend implements PrefillBackend {
  readonly #open: OpenBackend;
  #description: BackendDescription;
  #engine: PrefillBackend | null;
  /** Its closing has failed, or is under way. */
  #unclosed: PrefillBackend | null = null;

  private constructor(open: OpenBackend, description: BackendDescription, engine: PrefillBackend | null) {
    this.#open = open;
    this.#description = description;
    this.#engine = engine;
  }

  static async open(open: OpenBackend, signal: AbortSignal): Promise<ReloadableBackend> {
    const engine = await open(signal);
    return new ReloadableBackend(open, descriptionOf(engine), engine);
  }

  /** @param description of the engine that was unloaded, perhaps by an earlier process */
  static unloaded(open: OpenBackend, description: BackendDescription): ReloadableBackend {
    return new ReloadableBackend(open, description, null);
  }

  get isLoaded(): boolean {
    return this.#engine !== null;
  }

  get description(): BackendDescription {
    return this.#description;
  }

  get name(): string {
    return this.#description.name;
  }

  get model(): BackendModel {
    return this.#description.model;
  }

  get engine(): EngineFacts {
    return this.#description.engine;
  }

  get limits(): BackendLimits {
    return this.#description.limits;
  }

  get health(): BackendHealth {
    return this.#engine?.health ?? { state: 'starting', reason: 'the model is not loaded' };
  }

  prefill(task: PrefillTask): PrefillRun {
    return this.#engine?.prefill(task) ?? refusedRun();
  }

  stats(): BackendStats {
    return this.#engine?.stats() ?? UNLOADED;
  }

  /** Does nothing when it is loaded. @throws what opening throws, or the signal's reason; nothing is loaded then */
  async load(signal: AbortSignal): Promise<void> {
    if (this.#engine !== null) return;
    const engine = await this.#open(signal);
    if (signal.aborted) {
      await engine.close();
      throw signal.reason;
    }
    this.#description = descriptionOf(engine);
    this.#engine = engine;
    this.#unclosed = null;
  }

  /**
   * Cancels what runs. The engine's memory is free when this resolves.
   * @throws why it is not; unloading once more tries again
   */
  async unload(): Promise<void> {
    this.#unclosed = this.#engine ?? this.#unclosed;
    this.#engine = null;
    await this.#unclosed?.close();
    this.#unclosed = null;
  }

  close(): Promise<void> {
    return this.unload();
  }
}

function descriptionOf({ name, model, engine, limits }: PrefillBackend): BackendDescription {
  return { name, model, engine, limits };
}

function refusedRun(): PrefillRun {
  const chunks = new ChunkQueue(() => undefined);
  chunks.fail(new MuserError('UNAVAILABLE', 'the model is not loaded'));
  return {
    timings: { startedAtMs: null, endedAtMs: null, reusedTokens: 0 },
    computed: Promise.resolve(),
    [Symbol.asyncIterator]: () => chunks[Symbol.asyncIterator](),
  };
}
