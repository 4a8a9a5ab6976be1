import { commonLength, type Engine, type Sequence } from '@muser/metal';
import { fromEngineError } from '@muser/protocol';

/**
 * As long as vLLM's side holds the blocks of a reader that is away. A decoder whose link broke is back within seconds or has
 * gone elsewhere, and the cells cost nothing until a prefill needs them.
 */
const KEEP_MS = 30_000;

interface KeptPrompt {
  readonly scope: string;
  /** Whose rows are there. In memory only, and compared one by one: a hash would let one prompt pass for another. */
  readonly tokens: Uint32Array;
  readonly sequence: Sequence;
  readonly expiry: NodeJS.Timeout;
}

/** Sequences of prefills that are over, for a prefill of the same scope whose prompt begins with the same tokens. */
export class KeptPrompts {
  readonly #engine: Pick<Engine, 'open'>;
  readonly #keepMs: number;
  /** The least recently used one first. */
  readonly #kept: KeptPrompt[] = [];
  /** Sequences that are being freed. */
  readonly #drops = new Set<Promise<void>>();
  #closed = false;

  constructor(engine: Pick<Engine, 'open'>, keepMs = KEEP_MS) {
    this.#engine = engine;
    this.#keepMs = keepMs;
  }

  get sequences(): number {
    return this.#kept.length;
  }

  get tokens(): number {
    return this.#kept.reduce((sum, { tokens }) => sum + tokens.length, 0);
  }

  /**
   * Opens a sequence with room for `tokens`, which holds a beginning of them already where a former one can be used.
   * @param fits tells whether a former one, cut to what the prompts have in common, has all that is needed
   * @throws MuserError CONTEXT_FULL
   */
  async open(scope: string, tokens: Uint32Array, fits: (sequence: Sequence) => Promise<boolean>): Promise<Sequence> {
    const found = this.#take(scope, tokens);
    if (found !== null && (await this.#prepare(found, tokens, fits))) return found.sequence;
    return this.#whenFree(() => Promise.resolve(this.#engine.open(tokens.length)));
  }

  /** Takes over a sequence that holds a beginning of `tokens`. Resolves when it has no more room than it needs, or none. */
  async keep(scope: string, tokens: Uint32Array, sequence: Sequence): Promise<void> {
    const length = sequence.position;
    if (length === 0) return sequence.dispose();
    // Refused where rows were lost.
    const changes = await Promise.allSettled([sequence.truncate(length), sequence.reserve(length)]);
    if (this.#closed || changes.some(({ status }) => status === 'rejected')) return sequence.dispose();
    const expiry = setTimeout(() => this.#drop(kept), this.#keepMs);
    expiry.unref();
    const kept = { scope, tokens: tokens.slice(0, length), sequence, expiry };
    this.#kept.push(kept);
  }

  /** Frees all of them, now and later. */
  async close(): Promise<void> {
    this.#closed = true;
    for (const kept of [...this.#kept]) this.#drop(kept);
    await Promise.all(this.#drops);
  }

  /** The one of which the prompt can use the most; one of which more would be lost than used stays for its own prompt. */
  #take(scope: string, tokens: Uint32Array): KeptPrompt | null {
    let found: KeptPrompt | null = null;
    let most = 0;
    for (const kept of this.#kept) {
      const common = kept.scope === scope ? commonLength(kept.tokens, tokens) : 0;
      if (common <= most || 2 * common < kept.tokens.length) continue;
      found = kept;
      most = common;
    }
    if (found !== null) this.#forget(found);
    return found;
  }

  async #prepare(kept: KeptPrompt, tokens: Uint32Array, fits: (s: Sequence) => Promise<boolean>): Promise<boolean> {
    const { sequence } = kept;
    try {
      // Refused where the rows of a window are gone.
      await sequence.truncate(commonLength(kept.tokens, tokens));
      await this.#whenFree(() => sequence.reserve(tokens.length));
      if (await fits(sequence)) return true;
    } catch {
      // What cannot be used is computed again.
    }
    this.#drop(kept);
    return false;
  }

  /** Running prefills go before kept ones, which go one by one, the least recently used one first. */
  async #whenFree<T>(call: () => Promise<T>): Promise<T> {
    for (;;) {
      try {
        return await call();
      } catch (error) {
        const failure = fromEngineError(error);
        const oldest = this.#kept[0];
        if (failure.code !== 'CONTEXT_FULL' || (oldest === undefined && this.#drops.size === 0)) throw failure;
        if (oldest !== undefined) this.#drop(oldest);
        await Promise.all(this.#drops);
      }
    }
  }

  #forget(kept: KeptPrompt): void {
    clearTimeout(kept.expiry);
    const index = this.#kept.indexOf(kept);
    if (index >= 0) this.#kept.splice(index, 1);
  }

  #drop(kept: KeptPrompt): void {
    this.#forget(kept);
    const drop: Promise<void> = kept.sequence
      .dispose()
      // A closed engine has freed it.
      .catch(() => undefined)
      .finally(() => this.#drops.delete(drop));
    this.#drops.add(drop);
  }
}
