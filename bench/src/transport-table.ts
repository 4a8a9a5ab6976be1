import type { Goal, LinkFigures, RateFigures } from './transport.js';

export function ratesTable({ ways, goals, load }: RateFigures): string {
  const rates = ways.map((one) => [
    one.way,
    `${one.gigabitPerSecond}`,
    `${one.againstRaw}`,
    `${one.againstUnhashed}`,
    `${one.cpuSecondsPerGigabyte.sender} / ${one.cpuSecondsPerGigabyte.reader}`,
    `${one.peakMiB.sender} / ${one.peakMiB.reader}`,
    `${one.grownMiB.sender} / ${one.grownMiB.reader}`,
  ]);
  const heads = ['way', 'Gbit/s', 'of raw', 'of unhashed', 'CPU s/GB s/r', 'peak MiB s/r', 'grown MiB s/r'];
  return [table(heads, rates), goalTable(goals), `${loadLine(load)}; s/r: sender, reader\n`].join('\n');
}

export function linkTable({ link, paced, goals, load }: LinkFigures): string {
  const prompts = paced.map((one) => [
    `${one.promptTokens}`,
    `${one.tokensPerSecond}`,
    one.linkBitsPerSecond === null ? 'any' : `${one.linkBitsPerSecond / 1e9}`,
    `${one.rawGigabitPerSecond}`,
    `${one.ttftMs}`,
    `${one.transferMs}`,
    `${(100 * one.transferShare).toFixed(2)} %`,
    `${one.tailMs} (${one.tailGoalMs ?? 'none'})`,
  ]);
  const heads = ['prompt', 'tokens/s', 'Gbit/s', 'raw', 'TTFT ms', 'transfer ms', 'share', 'tail ms (goal)'];
  return [`link: ${link}\n`, table(heads, prompts), goalTable(goals), `${loadLine(load)}\n`].join('\n');
}

function goalTable(goals: readonly Goal[]): string {
  const verdict = (met: boolean | null): string => (met === null ? 'not here' : met ? 'met' : 'NOT MET');
  const judged = goals.map(({ name, measured, goal, met }) => [name, `${measured}`, `${goal}`, verdict(met)]);
  return table(['goal', 'measured', 'wanted', ''], judged);
}

const loadLine = ({ before, after }: RateFigures['load']): string =>
  `load ${before.toFixed(1)} before, ${after.toFixed(1)} after`;

function table(heads: string[], rows: string[][]): string {
  const all = [heads, ...rows];
  const widths = heads.map((_, column) => Math.max(...all.map((row) => row[column]?.length ?? 0)));
  const line = (row: string[]): string => row.map((cell, column) => cell.padEnd(widths[column] ?? 0)).join('  ');
  return `${all.map((row) => line(row).trimEnd()).join('\n')}\n`;
}
