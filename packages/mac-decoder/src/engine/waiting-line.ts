import { MuserError, withoutForeignText } from '@muser/protocol';

export interface WaitingLineOptions<T> {
  /** Tries to give `tokens` of room at once; null when there is none for now, throws when there never will be. */
  readonly tryEnter: (tokens: number) => T | null;
  /** How many may wait. */
  readonly limit: number;
  readonly deadlineMs: number;
}

interface Waiting<T> {
  readonly tokens: number;
  readonly resolve: (value: T) => void;
  readonly reject: (error: MuserError) => void;
}

/**
 * First come, first served: the one at the head waits until its whole room is free, and nobody overtakes it, so a long
 * prompt is never starved by short ones.
 */
export class WaitingLine<T> {
  private readonly waiting: Waiting<T>[] = [];
  private closed = false;

  constructor(private readonly options: WaitingLineOptions<T>) {}

  get length(): number {
    return this.waiting.length;
  }

  /**
   * Waits for `tokens` of room.
   * @throws MuserError QUEUE_FULL, DEADLINE_EXCEEDED, CANCELLED, UNAVAILABLE (closed), or what `tryEnter` throws.
   */
  async enter(tokens: number, signal: AbortSignal): Promise<T> {
    if (this.closed) throw closedError();
    if (signal.aborted) throw cancelledError();
    if (this.waiting.length === 0) {
      const entered = this.options.tryEnter(tokens);
      if (entered !== null) return entered;
    }
    if (this.waiting.length >= this.options.limit) {
      throw new MuserError('QUEUE_FULL', `The engine is busy and ${this.waiting.length} requests wait already.`, {
        details: { waiting: this.waiting.length, limit: this.options.limit },
      });
    }
    return this.wait(tokens, signal);
  }

  /** Room was made: lets in whoever fits now. */
  advance(): void {
    for (let head = this.waiting[0]; head !== undefined; head = this.waiting[0]) {
      try {
        const entered = this.options.tryEnter(head.tokens);
        if (entered === null) return;
        head.resolve(entered);
      } catch (error) {
        head.reject(withoutForeignText(error));
      }
      this.waiting.shift();
    }
  }

  /** Turns everybody away, now and later. */
  close(): void {
    this.closed = true;
    for (const waiting of this.waiting.splice(0)) waiting.reject(closedError());
  }

  private wait(tokens: number, signal: AbortSignal): Promise<T> {
    const { deadlineMs } = this.options;
    return new Promise<T>((resolve, reject) => {
      const settle = (): void => {
        clearTimeout(timer);
        signal.removeEventListener('abort', onAbort);
      };
      const entry: Waiting<T> = {
        tokens,
        resolve: (value) => {
          settle();
          resolve(value);
        },
        reject: (error) => {
          settle();
          reject(error);
        },
      };
      const leave = (error: MuserError): void => {
        this.waiting.splice(this.waiting.indexOf(entry), 1);
        entry.reject(error);
        // The next one may need less room than the one that left.
        this.advance();
      };
      const onAbort = (): void => leave(cancelledError());
      const timer = setTimeout(
        () => leave(new MuserError('DEADLINE_EXCEEDED', `No room in the engine within ${deadlineMs} ms.`)),
        deadlineMs,
      );
      signal.addEventListener('abort', onAbort, { once: true });
      this.waiting.push(entry);
    });
  }
}

function cancelledError(): MuserError {
  return new MuserError('CANCELLED', 'The request was cancelled while it waited for the engine.');
}

function closedError(): MuserError {
  return new MuserError('UNAVAILABLE', 'The decoder is shutting down.');
}
