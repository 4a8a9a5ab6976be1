import { commonLength } from '@muser/metal';

/** What is in the cache of a request that is over: the rows of exactly these tokens. */
export interface KeptPrefix<T> {
  /** In memory only. Compared one by one: a hash would let one prompt pass for another. */
  readonly tokens: Uint32Array;
  readonly holder: T;
}

export interface FoundPrefix<T> {
  readonly prefix: KeptPrefix<T>;
  /** Leading tokens of the prompt whose rows can be used: all of the prefix, or at least half of it. */
  readonly usable: number;
}

/**
 * The prefixes of former requests, the least recently used one first, at most `limitTokens` in all. What has to go is
 * returned: whoever asks frees it.
 */
export class KeptPrefixes<T> {
  private readonly kept: KeptPrefix<T>[] = [];

  constructor(readonly limitTokens: number) {}

  get count(): number {
    return this.kept.length;
  }

  get tokens(): number {
    return this.kept.reduce((sum, { tokens }) => sum + tokens.length, 0);
  }

  /** Keeps a prefix; returns those that are not kept any more, which may be this one. */
  add(prefix: KeptPrefix<T>): KeptPrefix<T>[] {
    // It would drop all the others, and then itself.
    if (prefix.tokens.length > this.limitTokens) return [prefix];
    const longer = this.kept.findIndex(({ tokens }) => commonLength(tokens, prefix.tokens) === prefix.tokens.length);
    if (longer >= 0) {
      // It is asked for again, so it is not the next to go.
      this.kept.push(...this.kept.splice(longer, 1));
      return [prefix];
    }
    const dropped = this.remove(({ tokens }) => commonLength(tokens, prefix.tokens) === tokens.length);
    this.kept.push(prefix);
    while (this.tokens > this.limitTokens) dropped.push(...this.kept.splice(0, 1));
    return dropped;
  }

  /**
   * Takes out the prefix that saves this prompt the most. The prompt's last token is never part of it: it has to be
   * evaluated. One of which more would be lost than used stays for its own prompt.
   */
  take(prompt: Uint32Array): FoundPrefix<T> | null {
    let found: FoundPrefix<T> | null = null;
    for (const prefix of this.kept) {
      const usable = Math.min(commonLength(prefix.tokens, prompt), prompt.length - 1);
      const worthIt = usable > 0 && 2 * usable >= prefix.tokens.length;
      if (worthIt && usable > (found?.usable ?? 0)) found = { prefix, usable };
    }
    if (found !== null) this.kept.splice(this.kept.indexOf(found.prefix), 1);
    return found;
  }

  /** Takes out the least recently used one. */
  takeOldest(): KeptPrefix<T> | null {
    return this.kept.shift() ?? null;
  }

  /** Takes out all that are no longer wanted. */
  remove(unwanted: (prefix: KeptPrefix<T>) => boolean): KeptPrefix<T>[] {
    const removed = this.kept.filter(unwanted);
    for (const prefix of removed) this.kept.splice(this.kept.indexOf(prefix), 1);
    return removed;
  }
}
