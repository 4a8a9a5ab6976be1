import { MuserError } from '@muser/protocol';

import type {
  BackendHealth,
  BackendStats,
  PrefillBackend,
  PrefillRun,
  PrefillTask,
} from '../../src/backend/backend.js';

/** A backend that takes long to open, opened once for many tests: closing it ends what runs and leaves the engine loaded. */
export class SharedBackend implements PrefillBackend {
  readonly name: string;
  readonly model: PrefillBackend['model'];
  readonly engine: PrefillBackend['engine'];
  readonly limits: PrefillBackend['limits'];
  readonly #backend: PrefillBackend;
  readonly #closing = new AbortController();
  readonly #runs: PrefillRun[] = [];

  constructor(backend: PrefillBackend) {
    this.#backend = backend;
    this.name = backend.name;
    this.model = backend.model;
    this.engine = backend.engine;
    this.limits = backend.limits;
  }

  get health(): BackendHealth {
    return this.#backend.health;
  }

  prefill(task: PrefillTask): PrefillRun {
    const run = this.#backend.prefill({ ...task, signal: AbortSignal.any([task.signal, this.#closing.signal]) });
    this.#runs.push(run);
    return run;
  }

  stats(): BackendStats {
    return this.#backend.stats();
  }

  async close(): Promise<void> {
    this.#closing.abort(new MuserError('CANCELLED', 'closing'));
    await Promise.all(this.#runs.map((run) => run.computed));
  }
}
