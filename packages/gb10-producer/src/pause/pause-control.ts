import { setMaxListeners } from 'node:events';

import { MuserError, toMuserError } from '@muser/protocol';
import { type Logger, ServiceError } from '@muser/service-kit';

import { orAborted } from '../abort.js';
import type { ReloadableBackend } from '../backend/reloadable.js';
import type { TransferService } from '../transfer/transfer-service.js';
import type { PauseFile } from './pause-file.js';

/**
 * running: the model is loaded, transfers are taken. pausing: nothing new is taken, what runs may finish, then the model
 * is unloaded. paused: nothing is loaded. resuming: the model is being loaded. failed: that failed, or the unloading did;
 * the next order tries again. docs/OPERATIONS.md has the table of what leads from one to the other.
 */
export type PauseState = 'running' | 'pausing' | 'paused' | 'resuming' | 'failed';

export interface PauseOrder {
  readonly paused: boolean;
  /** When pausing: ends the transfers that run instead of finishing them. */
  readonly cancelRunning: boolean;
}

export interface PauseParts {
  readonly backend: ReloadableBackend;
  readonly transfers: TransferService;
  readonly file: PauseFile;
  readonly logger: Logger;
}

/** What the last order has set going. */
interface Change {
  readonly stop: AbortController;
  readonly done: Promise<void>;
}

/**
 * Pauses and resumes a producer. Orders may come at any time: they are carried out one after another, and a newer one
 * ends the waiting or loading of the one before. What is ordered is on disk before anything else happens, so it also
 * holds for the next start.
 */
export class PauseControl {
  readonly #parts: PauseParts;
  #state: PauseState;
  #reason = '';
  #change: Change = { stop: new AbortController(), done: Promise.resolve() };
  #changed = newSignal();
  #isClosed = false;

  /** A backend that is not loaded makes a producer that starts paused. */
  constructor(parts: PauseParts) {
    this.#parts = parts;
    this.#state = parts.backend.isLoaded ? 'running' : 'paused';
    if (this.#state === 'paused') void parts.transfers.suspend(pausedError());
  }

  get state(): PauseState {
    return this.#state;
  }

  /** Why it failed, for people; empty in other states. */
  get reason(): string {
    return this.#reason;
  }

  /** Aborts at the next change of the state. */
  get changed(): AbortSignal {
    return this.#changed.signal;
  }

  /**
   * Resolves when the producer is as ordered: paused with the engine's memory free, or running with the engine ready.
   * Ordering what is so already changes nothing; resuming starts an engine again that has given up.
   *
   * @throws MuserError CANCELLED when a newer order to the contrary came, PRODUCER_DRAINING while the process closes,
   *   UNAVAILABLE when the order cannot be written down, or why the engine did not start
   */
  order({ paused, cancelRunning }: PauseOrder): Promise<void> {
    if (this.#isClosed) return Promise.reject(new MuserError('PRODUCER_DRAINING', 'the producer is closing'));
    if (paused !== this.#isPausedOrPausing() || this.#hasFailed()) this.#begin(paused);
    if (paused && cancelRunning) this.#parts.transfers.cancelRunning(pausedError());
    return this.#change.done;
  }

  /** Ends what is under way, within what an engine takes to stop. */
  async close(): Promise<void> {
    this.#isClosed = true;
    this.#change.stop.abort(new MuserError('CANCELLED', 'the producer is closing'));
    await this.#change.done.catch(() => undefined);
  }

  /** Also the engine that has given up while it was running. */
  #hasFailed(): boolean {
    return this.#state === 'failed' || (this.#state === 'running' && this.#parts.backend.health.state === 'error');
  }

  #isPausedOrPausing(): boolean {
    return this.#state === 'paused' || this.#state === 'pausing';
  }

  #begin(paused: boolean): void {
    const { transfers, logger } = this.#parts;
    const before = this.#change;
    const newer = `a newer order ${paused ? 'pauses' : 'resumes'} the producer`;
    before.stop.abort(new MuserError('CANCELLED', newer));
    const stop = new AbortController();
    const { signal } = stop;
    this.#turn(paused ? 'pausing' : 'resuming');
    logger.info(paused ? 'the producer is to pause' : 'the producer is to resume');
    // From here on nothing is taken: the decoders that ask must go elsewhere at once.
    const idle = transfers.suspend(pausedError());
    const carryOut = paused ? () => this.#pause(idle, signal) : () => this.#resume(signal);
    const done = before.done.catch(() => undefined).then(carryOut);
    // Whoever gave the order may not wait for it.
    done.catch(() => undefined);
    this.#change = { stop, done };
  }

  async #pause(idle: Promise<void>, signal: AbortSignal): Promise<void> {
    const { backend, file, logger } = this.#parts;
    await this.#writeDown(() => file.write(backend.description), signal);
    await orAborted(idle, signal);
    try {
      await backend.unload();
    } catch (thrown) {
      throw this.#fail(thrown, signal);
    }
    signal.throwIfAborted();
    this.#turn('paused');
    logger.info('the producer is paused: its model is unloaded');
  }

  async #resume(signal: AbortSignal): Promise<void> {
    const { backend, transfers, file, logger } = this.#parts;
    await this.#writeDown(() => file.remove(), signal);
    try {
      if (backend.health.state === 'error') await backend.unload();
      await backend.load(signal);
    } catch (thrown) {
      throw this.#fail(thrown, signal);
    }
    signal.throwIfAborted();
    this.#turn('running');
    transfers.readmit();
    logger.info('the producer is resumed: its model is loaded');
  }

  /** When the order cannot be kept over a restart it is not carried out at all. */
  async #writeDown(write: () => Promise<void>, signal: AbortSignal): Promise<void> {
    try {
      await write();
    } catch (error) {
      if (!signal.aborted) this.#stayAsItIs();
      throw error;
    }
    signal.throwIfAborted();
  }

  #stayAsItIs(): void {
    const { backend, transfers } = this.#parts;
    this.#turn(backend.isLoaded ? 'running' : 'paused');
    if (backend.isLoaded) transfers.readmit();
  }

  #fail(thrown: unknown, signal: AbortSignal): MuserError {
    const known = thrown instanceof ServiceError ? new MuserError(thrown.code, thrown.message) : thrown;
    const error = toMuserError(known, 'ENGINE_FAILED');
    if (signal.aborted) return error;
    this.#turn('failed', error.message);
    void this.#parts.transfers.suspend(new MuserError('UNAVAILABLE', error.message));
    this.#parts.logger.error({ code: error.code, reason: error.message }, 'the model could not be loaded or unloaded');
    return error;
  }

  #turn(state: PauseState, reason = ''): void {
    this.#state = state;
    this.#reason = reason;
    const before = this.#changed;
    this.#changed = newSignal();
    before.abort();
  }
}

const pausedError = (): MuserError => new MuserError('PRODUCER_PAUSED', 'the producer is paused');

/** Every watcher of the status listens. */
function newSignal(): AbortController {
  const controller = new AbortController();
  setMaxListeners(0, controller.signal);
  return controller;
}
