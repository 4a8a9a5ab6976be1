import { StringDecoder } from 'node:string_decoder';

import type { Logger } from '@muser/service-kit';

const MAX_LINE_CHARACTERS = 2_000;
const LEVEL = /^\s*(?:\[[^\]]*\]\s*|\([^)]*\)\s*)*(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b/;
const LEVELS = { DEBUG: 'debug', INFO: 'debug', WARNING: 'warn', ERROR: 'error', CRITICAL: 'error' } as const;
/** Advice about something that might happen is written in these. */
const HARMLESS: ReadonlySet<string | undefined> = new Set(['DEBUG', 'INFO', 'WARNING']);

/** "(EngineCore pid=7) ERROR 11-30 21:15:00 [core.py:1100] ", or less of it: nothing else may look like that. */
const START = /^(?:\([A-Za-z]\w* pid=\d+\) ?)?(?:[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d )?(?:\[[\w./]+\.py:\d+\])?/;
/** A place in a traceback: made of the code, never of what it works on. */
const PLACE = /^\s*File "[^"]*", line \d+, in [\w.<>]+$/;
const NUMBER = /\b(?:b?float(?:16|32|64)|u?int(?:8|16|32|64)|fp(?:4|8|16|32)|v[01])\b|\p{Nd}+/giu;
const SEVERAL = /#(?:[^\p{L}#]*#)+/gu;

/** A line about something that ends a worker is one of its last. */
const LAST_LINES = 200;

/**
 * Turns a worker's standard error into lines of our log, each cut at a length that no line needs.
 *
 * Prompts reach a worker as token ids and nothing there turns them into text. So once it may have one, no line of it keeps
 * a number, but in the line's own start, in places of a traceback and in names of types: an error of vLLM or PyTorch may
 * quote what it was working on.
 */
export class LogLines {
  readonly #logger: Logger;
  readonly #pattern: RegExp;
  readonly #decoder = new StringDecoder('utf8');
  #rest = '';
  #lines = 0;
  #matchedAt = -Infinity;
  #withNumbers = true;
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

  /** From now on the worker may know prompts. */
  hideNumbers(): void {
    this.#withNumbers = false;
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
    const level = LEVEL.exec(line)?.[1];
    this.last = this.#withNumbers ? line : withoutNumbers(line);
    this.#lines += 1;
    if (!HARMLESS.has(level) && this.#pattern.test(line)) this.#matchedAt = this.#lines;
    this.#logger[LEVELS[(level ?? 'INFO') as keyof typeof LEVELS]](this.last);
  }
}

function withoutNumbers(line: string): string {
  const start = START.exec(line)?.[0] ?? '';
  const text = line.slice(start.length);
  if (PLACE.test(text)) return line;
  return start + text.replace(NUMBER, (found) => (/^[a-z]/i.test(found) ? found : '#')).replace(SEVERAL, '#');
}
