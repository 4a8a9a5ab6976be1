import type { ServerResponse } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { MuserError } from '@muser/protocol';

/** The requests that run, so that a client that leaves and a shutdown reach all that was started for them. */
export class ActiveRequests {
  private readonly running = new Map<AbortController, Promise<unknown>>();
  private draining = false;

  get count(): number {
    return this.running.size;
  }

  /**
   * Runs `work` with a signal that is aborted when the client closes its connection before the answer is complete, or
   * when the decoder shuts down.
   * @throws MuserError UNAVAILABLE while the decoder shuts down; else what `work` throws.
   */
  async run<T>(
    response: ServerResponse,
    work: (signal: AbortSignal, abort: (reason: MuserError) => void) => Promise<T>,
  ): Promise<T> {
    if (this.draining) throw shutdownError();
    const controller = new AbortController();
    const onClose = (): void => {
      if (!response.writableFinished)
        controller.abort(new MuserError('CANCELLED', 'The client closed the connection.'));
    };
    response.on('close', onClose);
    const running = work(controller.signal, (reason) => controller.abort(reason));
    this.running.set(controller, running);
    try {
      return await running;
    } catch (error) {
      throw controller.signal.aborted ? controller.signal.reason : error;
    } finally {
      this.running.delete(controller);
      response.off('close', onClose);
    }
  }

  /** Takes no more requests, gives those that run `limitMs`, then aborts them. Resolves when none runs. */
  async drain(limitMs: number): Promise<void> {
    this.draining = true;
    const timer = new AbortController();
    const limit = sleep(limitMs, undefined, { signal: timer.signal }).catch(() => undefined);
    await Promise.race([this.settled(), limit]);
    timer.abort();
    for (const controller of this.running.keys()) controller.abort(shutdownError());
    await this.settled();
  }

  private async settled(): Promise<void> {
    await Promise.allSettled(this.running.values());
  }
}

function shutdownError(): MuserError {
  return new MuserError('UNAVAILABLE', 'The decoder is shutting down.');
}
