import type { WriteStream } from 'node:tty';
import { asTyped } from './command-name.js';

type Colour = 'bold' | 'dim' | 'red' | 'green' | 'yellow';
const ANSI: Record<Colour, [number, number]> = {
  bold: [1, 22],
  dim: [2, 22],
  red: [31, 39],
  green: [32, 39],
  yellow: [33, 39],
};

export interface OutputStream {
  write(text: string): boolean;
  readonly isTTY?: boolean;
  readonly columns?: number;
}

export function isTerminal(stream: OutputStream): boolean {
  return (stream as Partial<WriteStream>).isTTY === true;
}

/** Colours only on a terminal, and never when NO_COLOR is set (https://no-color.org) or the terminal is a dumb one. */
export function wantsColour(stream: OutputStream, env: NodeJS.ProcessEnv): boolean {
  return isTerminal(stream) && (env['NO_COLOR'] ?? '') === '' && env['TERM'] !== 'dumb';
}

/** Removes control characters, so that text from elsewhere cannot drive the terminal. Line feeds and tabs stay. */
export function printable(text: string): string {
  // eslint-disable-next-line no-control-regex -- control characters are the subject here
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g, '');
}

/**
 * What happens, for people: on a terminal one status line that is rewritten in place, elsewhere plain lines.
 * Answers and JSON never pass here.
 */
export class StatusOutput {
  readonly interactive: boolean;
  readonly #colour: boolean;
  #shown = false;

  constructor(
    private readonly stream: OutputStream,
    private readonly options: { quiet: boolean; env: NodeJS.ProcessEnv },
  ) {
    this.interactive = isTerminal(stream) && options.env['TERM'] !== 'dumb';
    this.#colour = wantsColour(stream, options.env);
  }

  paint(colour: Colour, text: string): string {
    if (!this.#colour) return text;
    const [on, off] = ANSI[colour];
    return `\u001b[${on}m${text}\u001b[${off}m`;
  }

  /** A line that stays. Nothing with --quiet. */
  line(text: string): void {
    if (!this.options.quiet) this.always(text);
  }

  /** A line that stays, also with --quiet: errors, and tables that were asked for. */
  always(text: string): void {
    this.clear();
    this.stream.write(`${asTyped(text, this.options.env)}\n`);
  }

  /** Replaces the status line; does nothing where lines cannot be rewritten. */
  status(text: string): void {
    if (this.options.quiet || !this.interactive) return;
    // A terminal that does not know its width says 0.
    const width = Math.max(20, (this.stream.columns || 80) - 1);
    const cut = text.length > width ? `${text.slice(0, width - 1)}…` : text;
    this.stream.write(`\r\u001b[K${this.paint('dim', cut)}`);
    this.#shown = true;
  }

  clear(): void {
    if (!this.#shown) return;
    this.stream.write('\r\u001b[K');
    this.#shown = false;
  }
}
