import { CliError, EXIT } from './exit.js';

export interface SseEvent {
  /** The event's name; 'message' when the stream gives none. */
  event: string;
  data: string;
}

/** One event's text may not grow beyond this; a decoder sends a few hundred characters at a time. */
const MAX_EVENT_CHARACTERS = 4 * 1024 * 1024;

/**
 * Server-sent events from bytes that may be cut anywhere, also inside a character or between CR and LF.
 * Comments, ids and retry times are skipped. An event is complete at its blank line; what is left over at the end of the
 * stream is no event.
 */
export class SseParser {
  // One decoder for the whole stream: a new one per chunk would break characters at the borders.
  readonly #decoder = new TextDecoder('utf-8');
  #line = '';
  #data: string[] = [];
  #event = '';
  #characters = 0;
  #afterCarriageReturn = false;

  push(bytes: Uint8Array): SseEvent[] {
    const text = this.#decoder.decode(bytes, { stream: true });
    const events: SseEvent[] = [];
    let from = 0;
    if (this.#afterCarriageReturn && text.length > 0) {
      if (text.startsWith('\n')) from = 1;
      this.#afterCarriageReturn = false;
    }
    const lineEnd = /\r\n|\r|\n/g;
    lineEnd.lastIndex = from;
    for (let match = lineEnd.exec(text); match !== null; match = lineEnd.exec(text)) {
      this.#endLine(this.#line + text.slice(from, match.index), events);
      this.#line = '';
      from = lineEnd.lastIndex;
      this.#afterCarriageReturn = match[0] === '\r' && from === text.length;
    }
    this.#line += text.slice(from);
    this.#checkSize(this.#characters + this.#line.length);
    return events;
  }

  #endLine(line: string, events: SseEvent[]): void {
    if (line === '') {
      if (this.#data.length > 0) events.push({ event: this.#event || 'message', data: this.#data.join('\n') });
      this.#data = [];
      this.#event = '';
      this.#characters = 0;
      return;
    }
    const colon = line.indexOf(':');
    const field = colon < 0 ? line : line.slice(0, colon);
    const rest = colon < 0 ? '' : line.slice(colon + 1);
    const value = rest.startsWith(' ') ? rest.slice(1) : rest;
    if (field === 'data') {
      this.#data.push(value);
      // And the line's end, which is kept too: so an event has no end of empty lines either.
      this.#characters += value.length + 1;
      this.#checkSize(this.#characters);
    } else if (field === 'event') {
      this.#event = value;
    }
  }

  #checkSize(characters: number): void {
    if (characters <= MAX_EVENT_CHARACTERS) return;
    throw new CliError(
      EXIT.failed,
      'MESSAGE_TOO_LARGE',
      `the decoder sent an event of more than ${MAX_EVENT_CHARACTERS} characters`,
    );
  }
}
