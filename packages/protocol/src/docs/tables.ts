import { ERROR_CODES } from '../errors.js';
import * as limits from '../limits.js';
import { LIMIT_MEANINGS } from './limit-meanings.js';

/** Table of docs/ERRORS.md. */
export function errorTable(): string {
  const rows = Object.entries(ERROR_CODES).map(([code, info]) => [
    `\`${code}\``,
    info.meaning,
    info.advice,
    String(info.httpStatus),
    `\`${info.grpcStatus}\``,
    info.retryable ? 'yes' : 'no',
  ]);
  return table(['Code', 'What happened', 'What to do', 'HTTP', 'gRPC', 'Retry'], rows);
}

/** Table of docs/LIMITS.md. */
export function limitTable(): string {
  const names = Object.keys(LIMIT_MEANINGS) as (keyof typeof limits)[];
  const rows = names.map((name) => [`\`${name}\``, amount(name, limits[name]), LIMIT_MEANINGS[name]]);
  return table(['Limit', 'Value', 'Of what'], rows);
}

/** The text between the two marks of a document replaced by `content`. */
export function replaceBetweenMarks(document: string, name: string, content: string): string {
  const [begin, end] = [`<!-- ${name}: generated, do not edit -->`, `<!-- ${name}: end -->`];
  const [from, to] = [document.indexOf(begin), document.indexOf(end)];
  if (from < 0 || to < from) throw new Error(`the document has no marks for ${name}`);
  return `${document.slice(0, from + begin.length)}\n\n${content}\n${document.slice(to)}`;
}

function amount(name: string, value: number): string {
  const grouped = value.toLocaleString('en-US');
  if (name.endsWith('_BYTES')) return `${grouped} bytes`;
  if (name.endsWith('_MS')) return `${grouped} ms`;
  return name.endsWith('_TOKENS') ? `${grouped} tokens` : grouped;
}

function table(head: string[], rows: string[][]): string {
  const line = (cells: string[]): string => `| ${cells.join(' | ')} |\n`;
  return [head, head.map(() => '---'), ...rows].map(line).join('');
}
