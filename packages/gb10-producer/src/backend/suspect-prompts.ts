import { createHash } from 'node:crypto';

import { MuserError } from '@muser/protocol';

const HOUR_MS = 3_600_000;
const MAX_PROMPTS = 256;
/** One failure may have any cause; the same prompt at two of them is no accident. */
const FAILURES = 2;

/** Remembers, by their digest alone, which prompts were computing when the engine died, so that one cannot kill it again and again. */
export class SuspectPrompts {
  readonly #failures = new Map<string, { count: number; atMs: number; ended: symbol }>();

  /** @throws MuserError ENGINE_FAILED for a prompt that was there twice within an hour */
  check(tokens: Uint32Array): void {
    const known = this.#failures.get(digestOf(tokens));
    if (known === undefined || known.count < FAILURES || performance.now() - known.atMs > HOUR_MS) return;
    const message = `vLLM has ended ${known.count} times while it computed this prompt, so it is not tried again`;
    throw new MuserError('ENGINE_FAILED', message);
  }

  /**
   * @param ended which engine; it counts once, however often the prompt was under way: people ask again when nothing comes
   * @returns how often an engine has ended during this prompt
   */
  blame(tokens: Uint32Array, ended: symbol): number {
    const digest = digestOf(tokens);
    const known = this.#failures.get(digest);
    const nowMs = performance.now();
    if (known?.ended === ended) return known.count;
    const count = known === undefined || nowMs - known.atMs > HOUR_MS ? 1 : known.count + 1;
    this.#failures.delete(digest);
    this.#failures.set(digest, { count, atMs: nowMs, ended });
    const [oldest] = this.#failures.keys();
    if (this.#failures.size > MAX_PROMPTS && oldest !== undefined) this.#failures.delete(oldest);
    return count;
  }
}

function digestOf(tokens: Uint32Array): string {
  return createHash('sha256').update(tokens).digest('hex');
}
