import { StringDecoder } from 'node:string_decoder';

import type { Logger } from '@muser/service-kit';

const MAX_LINE_CHARACTERS = 2_000;
const LEVEL = /^\s*(?:\[[^\]]*\]\s*|\([^)]*\)\s*)*(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b/;
const LEVELS = { DEBUG: 'debug', INFO: 'debug', WARNING: 'warn', ERROR: 'error', CRITICAL: 'error' } as const;

/** Turns a worker's standard error into lines of our log, each cut at a length that no line needs. */
export class LogLines {
  readonly #logger: Logger;
  readonly #pattern: RegExp;
  readonly #decoder = new StringDecoder('utf8');
  #rest = '';
  /** A line matched the pattern. */
  matched = false;
  /** The last line that was not empty. */
  last = '';

  constructor(logger: Logger, pattern: RegExp) {
    this.#logger = logger;
    this.#pattern = pattern;
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
    if (this.#pattern.test(line)) this.matched = true;
    const level = LEVELS[(LEVEL.exec(line)?.[1] ?? 'INFO') as keyof typeof LEVELS];
    this.#logger[level](line);
  }
}
