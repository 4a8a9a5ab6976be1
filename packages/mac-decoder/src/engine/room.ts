import type { Engine, Sequence } from '@muser/metal';
import { fromEngineError, MuserError } from '@muser/protocol';
import { engineCall } from '../errors/engine-errors.js';
import { KeptPrefixes, type FoundPrefix, type KeptPrefix } from './kept-prefixes.js';
import { RowOrigins } from './row-origins.js';
import { SequenceLease } from './sequence-lease.js';
import { WaitingLine } from './waiting-line.js';

export interface RoomOptions {
  readonly engine: Pick<Engine, 'open'>;
  readonly maxSequences: number;
  readonly contextTokens: number;
  /** Most tokens of former requests whose rows stay; 0: none. */
  readonly keptTokens: number;
  /** How many requests may wait, and how long. */
  readonly queueLimit: number;
  readonly queueDeadlineMs: number;
}

/** What a request needs. */
export interface WantedRoom {
  readonly prompt: Uint32Array;
  /** Prompt and longest answer. */
  readonly reserveTokens: number;
}

export interface RoomLoad {
  /** Requests that hold room, the most there can be, and requests that wait. */
  readonly active: number;
  readonly max: number;
  readonly waiting: number;
  /** What is kept of former requests. */
  readonly kept: { readonly sequences: number; readonly tokens: number; readonly limitTokens: number };
}

/** A sequence, and who its rows are of. */
interface HeldRows {
  readonly sequence: Sequence;
  readonly origins: RowOrigins;
}

/**
 * Shares the engine's sequences and cells. Running requests are counted here; what they leave free may hold prefixes of
 * former ones, which go, least recently used first, as soon as a request needs their place.
 */
export class EngineRoom {
  private readonly line: WaitingLine<number>;
  private readonly kept: KeptPrefixes<HeldRows>;
  /** Sequences that are being freed. */
  private readonly drops = new Set<Promise<void>>();
  private running = 0;
  private runningTokens = 0;
  private closed = false;

  constructor(private readonly options: RoomOptions) {
    this.kept = new KeptPrefixes(options.keptTokens);
    this.line = new WaitingLine({
      tryEnter: (tokens) => this.grant(tokens),
      limit: options.queueLimit,
      deadlineMs: options.queueDeadlineMs,
    });
  }

  load(): RoomLoad {
    const { kept } = this;
    return {
      active: this.running,
      max: this.options.maxSequences,
      waiting: this.line.length,
      kept: { sequences: kept.count, tokens: kept.tokens, limitTokens: kept.limitTokens },
    };
  }

  /**
   * Waits for room and gives a sequence, which holds a beginning of the prompt already where a former request left one.
   * @throws MuserError QUEUE_FULL, DEADLINE_EXCEEDED, CANCELLED, UNAVAILABLE, CONTEXT_FULL (would never fit).
   */
  async admit(wanted: WantedRoom, signal: AbortSignal): Promise<SequenceLease> {
    await this.line.enter(wanted.reserveTokens, signal);
    try {
      const { sequence, origins } = await this.rowsFor(wanted);
      return new SequenceLease({
        sequence,
        origins,
        reopen: () => this.open(wanted.reserveTokens),
        giveBack: (last, keep) => this.takeBack({ sequence: last, origins }, wanted, keep),
      });
    } catch (error) {
      this.giveUp(wanted);
      throw fromEngineError(error);
    }
  }

  /** Frees what is kept with rows of these producers in it. */
  dropRowsOf(producerIds: readonly string[]): void {
    for (const prefix of this.kept.remove(({ holder }) => holder.origins.isOfAny(producerIds))) this.drop(prefix);
  }

  /** Turns away who waits and frees what is kept. */
  async close(): Promise<void> {
    this.closed = true;
    this.line.close();
    for (let prefix = this.kept.takeOldest(); prefix !== null; prefix = this.kept.takeOldest()) this.drop(prefix);
    await Promise.all(this.drops);
  }

  private grant(tokens: number): number | null {
    const { contextTokens, maxSequences } = this.options;
    if (tokens > contextTokens) {
      throw new MuserError('CONTEXT_FULL', `${tokens} tokens are wanted, the context has ${contextTokens}.`, {
        details: { tokens, contextTokens },
      });
    }
    if (this.running >= maxSequences || this.runningTokens + tokens > contextTokens) return null;
    this.running += 1;
    this.runningTokens += tokens;
    return tokens;
  }

  private giveUp({ reserveTokens }: WantedRoom): void {
    this.running -= 1;
    this.runningTokens -= reserveTokens;
    this.line.advance();
  }

  private async rowsFor({ prompt, reserveTokens }: WantedRoom): Promise<HeldRows> {
    const found = this.kept.take(prompt);
    this.makeRoom();
    const held = found === null ? null : await this.takeOver(found, reserveTokens);
    return held ?? { sequence: await this.open(reserveTokens), origins: new RowOrigins() };
  }

  /** Null when the rows cannot be used after all. */
  private async takeOver({ prefix, usable }: FoundPrefix<HeldRows>, reserveTokens: number): Promise<HeldRows | null> {
    const { sequence, origins } = prefix.holder;
    try {
      // Also at the end: it refuses rows that were lost meanwhile.
      await sequence.truncate(usable);
      await this.whenFree(() => sequence.reserve(reserveTokens));
      origins.cut(usable);
      return prefix.holder;
    } catch {
      // Where only the way back was closed (rows of a window are gone), it is still good for its own prompt.
      const whole = usable < prefix.tokens.length && sequence.position === prefix.tokens.length;
      if (whole) this.keep(prefix);
      else this.drop(prefix);
      this.makeRoom();
      return null;
    }
  }

  private open(reserveTokens: number): Promise<Sequence> {
    return this.whenFree(() => Promise.resolve(this.options.engine.open(reserveTokens)));
  }

  /** What runs fits beside each other, so whatever is missing is being freed. */
  private async whenFree<T>(call: () => Promise<T>): Promise<T> {
    for (;;) {
      try {
        return await engineCall(call);
      } catch (error) {
        if (fromEngineError(error).code !== 'CONTEXT_FULL' || this.drops.size === 0) throw error;
        await Promise.all(this.drops);
      }
    }
  }

  /** Frees kept prefixes until the running requests fit beside the others. */
  private makeRoom(): void {
    const { contextTokens, maxSequences } = this.options;
    // While something runs, freeing takes up to one of its steps, so one sequence stays free for the next request.
    const sequences = maxSequences - (this.running > 0 ? 1 : 0);
    while (this.running + this.kept.count > sequences || this.runningTokens + this.kept.tokens > contextTokens) {
      const oldest = this.kept.takeOldest();
      if (oldest === null) return;
      this.drop(oldest);
    }
  }

  private drop({ holder }: Pick<KeptPrefix<HeldRows>, 'holder'>): void {
    const drop: Promise<void> = holder.sequence
      .dispose()
      // A closed engine has freed it.
      .catch(() => undefined)
      .finally(() => this.drops.delete(drop));
    this.drops.add(drop);
  }

  private async takeBack(rows: HeldRows, wanted: WantedRoom, keep: boolean): Promise<void> {
    try {
      const prefix = keep && !this.closed ? await this.prefixOf(rows, wanted.prompt) : null;
      // It may have been closed meanwhile.
      if (prefix === null || this.closed) await rows.sequence.dispose();
      else this.keep(prefix);
    } finally {
      this.giveUp(wanted);
      this.makeRoom();
    }
  }

  private keep(prefix: KeptPrefix<HeldRows>): void {
    for (const dropped of this.kept.add(prefix)) this.drop(dropped);
  }

  /** The prompt's rows that can be gone on from, in no more cells than they need; null when there are none. */
  private async prefixOf(rows: HeldRows, prompt: Uint32Array): Promise<KeptPrefix<HeldRows> | null> {
    const { sequence, origins } = rows;
    const length = Math.min(sequence.position, prompt.length - 1);
    if (length < 1 || length > this.kept.limitTokens) return null;
    // Refused where rows were lost, or where nobody can go on from there.
    const changes = await Promise.allSettled([sequence.truncate(length), sequence.reserve(length)]);
    if (changes.some(({ status }) => status === 'rejected')) return null;
    origins.cut(length);
    return { tokens: prompt.slice(0, length), holder: rows };
  }
}
