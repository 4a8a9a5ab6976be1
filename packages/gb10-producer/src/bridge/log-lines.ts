import { StringDecoder } from 'node:string_decoder';

import type { Logger } from '@muser/service-kit';

const MAX_LINE_CHARACTERS = 2_000;
const LEVEL = /^\s*(?:\[[^\]]*\]\s*|\([^)]*\)\s*)*(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b/;
const LEVELS = { DEBUG: 'debug', INFO: 'debug', WARNING: 'warn', ERROR: 'error', CRITICAL: 'error' } as const;

/** A line about something that ends a worker is one of its last. */
const LAST_LINES = 200;

/** Turns a worker's standard error into lines of our log, each cut at a length that no line needs. */
export class LogLines {
  readonly #logger: Logger;
  readonly #pattern: RegExp;
  readonly #decoder = new StringDecoder('utf8');
  #rest = '';
  #lines = 0;
  #matchedAt = -Infinity;
  /** The last line that was not empty. */
  last = '';

  constructor(logger: Logger, pattern: RegExp) {
    this.#logger = logger;
    this.#pattern = pattern;
  }

  /** One of the last lines matches the pattern. */
  get matched(): boolean {
    return this.#lines - this.#matchedAt < LAST_LINES;
  }

  push(block: Buffer): void {
    const lines = (this.#rest + this.#decoder.write(block)).split(/\r\n|\n|\r/);
    // What a line has beyond its limit is dropped as it comes, so a worker that never ends one needs no memory.
    this.#rest = (lines.pop() ?? '').slice(0, MAX_LINE_CHARACTERS);
    for (const line of lines) this.#write(line);
  }

  end(): void {
    this.#write(this.#rest);
    this.#rest = '';
  }

  #write(whole: string): void {
    const line = whole.slice(0, MAX_LINE_CHARACTERS).trimEnd();
    if (line === '') return;
    this.last = line;
    this.#lines += 1;
    if (this.#pattern.test(line)) this.#matchedAt = this.#lines;
    const level = LEVELS[(LEVEL.exec(line)?.[1] ?? 'INFO') as keyof typeof LEVELS];
    this.#logger[level](line);
  }
}
