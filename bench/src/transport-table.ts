import type { TransportFigures } from './transport.js';

/** For people. */
export function transportTable({ ways, paced, goals, link, load }: TransportFigures): string {
  const rates = ways.map((one) => [
    one.way,
    `${one.gigabitPerSecond}`,
    `${one.againstRaw}`,
    `${one.againstUnhashed}`,
    `${one.cpuSecondsPerGigabyte.sender} / ${one.cpuSecondsPerGigabyte.reader}`,
    `${one.peakMiB.sender} / ${one.peakMiB.reader}`,
    `${one.grownMiB.sender} / ${one.grownMiB.reader}`,
  ]);
  const prompts = paced.map((one) => [
    `${one.promptTokens}`,
    `${one.tokensPerSecond}`,
    `${one.linkBitsPerSecond / 1e9}`,
    `${one.ttftMs}`,
    `${one.transferMs}`,
    `${(100 * one.transferShare).toFixed(2)} %`,
    `${one.tailMs} (${one.tailGoalMs})`,
  ]);
  const verdict = (met: boolean | null): string => (met === null ? 'not here' : met ? 'met' : 'NOT MET');
  const judged = goals.map(({ name, measured, goal, met }) => [name, `${measured}`, `${goal}`, verdict(met)]);
  return [
    table(['way', 'Gbit/s', 'of raw', 'of unhashed', 'CPU s/GB s/r', 'peak MiB s/r', 'grown MiB s/r'], rates),
    `link: ${link}\n`,
    table(['prompt', 'tokens/s', 'Gbit/s', 'TTFT ms', 'transfer ms', 'share', 'tail ms (goal)'], prompts),
    table(['goal', 'measured', 'wanted', ''], judged),
    `load ${load.before.toFixed(1)} before, ${load.after.toFixed(1)} after; s/r: sender, reader\n`,
  ].join('\n');
}

function table(heads: string[], rows: string[][]): string {
  const all = [heads, ...rows];
  const widths = heads.map((_, column) => Math.max(...all.map((row) => row[column]?.length ?? 0)));
  const line = (row: string[]): string => row.map((cell, column) => cell.padEnd(widths[column] ?? 0)).join('  ');
  return `${all.map((row) => line(row).trimEnd()).join('\n')}\n`;
}
