import type { Sequence } from '@muser/metal';
import { fromEngineError, MuserError } from '@muser/protocol';
import { engineCall } from '../errors/engine-errors.js';
import type { RowOrigins } from './row-origins.js';

export interface LeaseParts {
  readonly sequence: Sequence;
  /** Of the rows that it has from an earlier request; kept up to date while the lease lasts. */
  readonly origins: RowOrigins;
  /** Opens an empty sequence with the same room, after the one before was disposed. */
  readonly reopen: () => Promise<Sequence>;
  /** Takes the sequence back with its room; it may keep the rows of the prompt for the next request. */
  readonly giveBack: (sequence: Sequence, keep: boolean) => Promise<void>;
}

/** A sequence and its room, for one request. */
export class SequenceLease {
  private current: Sequence;
  private released: Promise<void> | null = null;

  constructor(private readonly parts: LeaseParts) {
    this.current = parts.sequence;
  }

  /** Its position is above 0 from the start where rows of an earlier request are used. */
  get sequence(): Sequence {
    return this.current;
  }

  /** Who the sequence's rows are of. */
  get origins(): RowOrigins {
    return this.parts.origins;
  }

  /**
   * Puts the sequence back to `position` tokens. Where the engine refuses that (rows of a window are gone), to 0; where
   * it refuses even that, a new sequence takes its place.
   * @returns the position that it got.
   */
  async rewind(position: number): Promise<number> {
    if (this.current.position === position) return position;
    for (const target of new Set([position, 0])) {
      try {
        await this.current.truncate(target);
        this.origins.cut(target);
        return target;
      } catch (error) {
        if (fromEngineError(error).code === 'CANCELLED') throw fromEngineError(error);
      }
    }
    await this.replace();
    return 0;
  }

  /** Drops the sequence with everything in it for an empty one with the same room. */
  async replace(): Promise<void> {
    if (this.released !== null) throw new MuserError('SEQUENCE_STATE', 'The sequence was released.');
    await engineCall(() => this.current.dispose());
    this.origins.cut(0);
    this.current = await this.parts.reopen();
  }

  /**
   * Cancels what runs in the sequence and gives its room to the next request. Any number of calls.
   * @param keep the prompt's rows may stay, so that a request that begins with the same tokens goes on from them
   */
  release(keep = false): Promise<void> {
    this.released ??= engineCall(() => this.parts.giveBack(this.current, keep));
    return this.released;
  }
}
