import { decodeFrame, MuserError, type Frame } from '@muser/protocol';

/** A reader of one transfer that takes its frames when a test lets it, in place of a stream. */
export class GatedReader {
  readonly taken: Buffer[] = [];
  readonly #leave = new AbortController();
  #permits: number;
  #waiting: { take: () => void; refuse: (reason: unknown) => void }[] = [];
  #refusal: MuserError | null = null;

  /** @param permits how many frames it takes until `take` is called */
  constructor(permits = Infinity) {
    this.#permits = permits;
  }

  /** Aborts when it is gone. */
  get gone(): AbortSignal {
    return this.#leave.signal;
  }

  get waits(): boolean {
    return this.#waiting.length > 0;
  }

  get kinds(): Frame['kind'][] {
    return this.taken.map((frame) => decodeFrame(frame).kind);
  }

  /** The code of the Error frame, if there was one. */
  get errorCode(): string | null {
    const last = this.taken.at(-1);
    const frame = last === undefined ? null : decodeFrame(last);
    return frame?.kind === 'error' ? frame.value.code : null;
  }

  /** As PrefillCall.send. */
  readonly send = async (frame: Buffer): Promise<void> => {
    if (this.#permits <= 0) {
      await new Promise<void>((take, refuse) => this.#waiting.push({ take, refuse }));
    } else if (this.#refusal !== null) {
      throw this.#refusal;
    }
    this.gone.throwIfAborted();
    this.#permits -= 1;
    // A copy: a sender may use its memory again.
    this.taken.push(Buffer.from(frame));
  };

  take(frames: number): void {
    this.#permits += frames;
    for (const { take } of this.#waiting.splice(0, Math.max(0, Math.min(frames, this.#waiting.length)))) take();
  }

  /** Ends the call as a client does that cancels. */
  leave(): void {
    const reason = new MuserError('CANCELLED', 'the reader is gone');
    this.#leave.abort(reason);
    for (const { refuse } of this.#waiting.splice(0)) refuse(reason);
  }

  /** Fails what is being sent, as the transport does when nothing has been taken for too long. */
  stall(): void {
    this.#refusal = new MuserError('STALLED', 'the reader takes nothing');
    for (const { refuse } of this.#waiting.splice(0)) refuse(this.#refusal);
    this.#permits = Infinity;
  }
}
