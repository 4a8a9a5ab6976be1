import { arch, availableParallelism, cpus, platform, release, totalmem } from 'node:os';
import { outcomeText, PHASES, whereText, type Cell, type Outcome } from './cells.js';

export interface Result {
  readonly cell: Cell;
  readonly verdict: 'passed' | 'failed' | 'not run';
  /** What came, when that was allowed. */
  readonly outcome: Outcome | null;
  /** Why it failed or was not run; of one that passed, why it had failed before. */
  readonly reason: string | null;
  /** On a machine that is too busy, a process can be silent for longer than another one waits: one more try. */
  readonly tries: number;
  readonly seconds: number;
}

export interface Run {
  readonly seed: number;
  readonly seconds: number;
  readonly results: readonly Result[];
}

const GIB = 2 ** 30;

export const countOf = ({ results }: Run, verdict: Result['verdict']): number =>
  results.filter((result) => result.verdict === verdict).length;

export const triedAgain = ({ results }: Run): number =>
  results.filter(({ verdict, tries }) => verdict === 'passed' && tries > 1).length;

/** The line that ends every run. */
export const totals = (run: Run): string => `${countOf(run, 'passed')} passed, ${countOf(run, 'failed')} failed`;

export function machine(): Record<string, string | number> {
  return {
    system: `${platform()} ${release()} ${arch()}`,
    processor: cpus()[0]?.model.trim() ?? 'unknown',
    cores: availableParallelism(),
    memoryGiB: Math.round((totalmem() / GIB) * 10) / 10,
    node: process.versions.node,
  };
}

/** The run as one object, with a line for each cell. */
export function toJson(run: Run): object {
  return {
    machine: machine(),
    seed: run.seed,
    seconds: round(run.seconds),
    passed: countOf(run, 'passed'),
    failed: countOf(run, 'failed'),
    notRun: countOf(run, 'not run'),
    triedAgain: triedAgain(run),
    cells: run.results.map(({ cell, verdict, outcome, reason, tries, seconds }) => ({
      id: cell.id,
      allowed: cell.expect.map(outcomeText).join(' or '),
      verdict,
      outcome: outcome === null ? null : outcomeText(outcome),
      reason,
      tries,
      seconds: round(seconds),
    })),
  };
}

/** The matrix: one row for each fault, one column for each phase. */
export function toMarkdown(run: Run): string {
  const rows = new Map<string, Result[]>();
  for (const result of run.results) {
    const { backend, happening } = result.cell;
    const name = `${backend}: ${whereText(happening)}: ${happening.fault}`;
    rows.set(name, [...(rows.get(name) ?? []), result]);
  }
  const body = [...rows].map(([name, results]) => [
    name,
    ...PHASES.map((phase) => phaseCell(results, phase)),
    codes(results),
  ]);
  return table(['what happens', ...PHASES, 'codes'], body);
}

function phaseCell(results: readonly Result[], phase: string): string {
  return results
    .filter(({ cell }) => cell.phase === phase)
    .map(word)
    .join(' ');
}

/** How the prompt was prefilled in the end, or why nothing can be said. */
function word({ verdict, outcome }: Result): string {
  if (verdict !== 'passed' || outcome === null) return verdict === 'failed' ? '**FAILED**' : verdict;
  return outcome.way === 'remote' && outcome.failures.length > 0 ? 'again' : outcome.way;
}

function codes(results: readonly Result[]): string {
  return [...new Set(results.flatMap(({ outcome }) => outcome?.failures ?? []))].sort().join(', ');
}

function table(head: readonly string[], body: readonly (readonly string[])[]): string {
  const widths = head.map((_, column) => Math.max(3, ...[head, ...body].map((row) => row[column]?.length ?? 0)));
  const line = (row: readonly string[]): string =>
    `| ${row.map((text, column) => text.padEnd(widths[column] ?? 0)).join(' | ')} |`;
  return [line(head), line(widths.map((width) => '-'.repeat(width))), ...body.map(line)].join('\n');
}

function round(seconds: number): number {
  return Math.round(seconds * 10) / 10;
}
