import type { CellResult } from './cells.js';
import type { Report } from './inside.js';

const HEADINGS = [
  'link',
  'cell',
  'way',
  'fallback',
  'tokens',
  'TTFT local',
  'TTFT',
  'MB',
  'MB/s',
  'exposed tail',
  'note',
] as const;
/** Of these columns, from which on the next are figures, and which is text again. */
const isFigure = (column: number): boolean => column >= 4 && column <= 9;

/** The report for people. */
export function show({ links, cells }: Report): string {
  const lines = links.map(({ name, description, figures }) => {
    const { bitsPerSecond, delayedBitsPerSecond, framesBitsPerSecond, roundTripMs } = figures;
    const raw = `${megabits(bitsPerSecond)} Mbit/s raw, ${megabits(delayedBitsPerSecond)} with the delay`;
    const measured = `${raw}, ${megabits(framesBitsPerSecond)} as frames by gRPC and TLS`;
    return `${name.padEnd(5)} ${description}; measured ${measured}, ${roundTripMs.toFixed(2)} ms there and back`;
  });
  const problems = cells.filter(({ problem }) => problem !== null);
  const failed = problems.map(({ link, cell, problem }) => `FAILED ${link}, ${cell}: ${problem ?? ''}`);
  const sum = `${cells.length - problems.length} passed, ${problems.length} failed`;
  return [...lines, '', ...aligned([[...HEADINGS], ...cells.map(row)]), '', ...failed, sum].join('\n');
}

function row(result: CellResult): string[] {
  const { link, cell, problem, way, fallback, promptTokens, ttftMs, localTtftMs, kvBytes, note } = result;
  const { megabytesPerSecond, exposedTailMs } = result;
  if (problem !== null) return [link, cell, 'FAILED', ...HEADINGS.slice(4).map(() => ''), note];
  return [
    link,
    cell,
    way,
    fallback ?? '',
    String(promptTokens),
    `${Math.round(localTtftMs)} ms`,
    `${Math.round(ttftMs)} ms`,
    (kvBytes / 1e6).toFixed(1),
    megabytesPerSecond?.toFixed(1) ?? '',
    exposedTailMs === null ? '' : `${Math.round(exposedTailMs)} ms`,
    note,
  ];
}

function aligned(rows: readonly string[][]): string[] {
  const widths = HEADINGS.map((_, column) => Math.max(...rows.map((cells) => cells[column]?.length ?? 0)));
  return rows.map((cells) =>
    cells
      .map((text, column) => (isFigure(column) ? text.padStart(widths[column] ?? 0) : text.padEnd(widths[column] ?? 0)))
      .join('  ')
      .trimEnd(),
  );
}

function megabits(bitsPerSecond: number): string {
  return (bitsPerSecond / 1e6).toFixed(0);
}
