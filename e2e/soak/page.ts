import type { SoakReport } from './run.js';
import { failures, slopes } from './verdict.js';

const MIB = 1 << 20;

/** The report as Markdown; neither dates nor paths are in it. */
export function page(report: SoakReport): string {
  const { outcomes, unsettled } = report;
  const failed = failures(report);
  return [
    `# Soak: ${report.transfers} transfers, seed ${report.seed}, backend ${report.backend}`,
    '',
    failed.length === 0 ? 'Passed.' : `Failed: ${failed.join('; ')}.`,
    '',
    ...table(
      ['what', 'count'],
      [
        ['answers equal to the local one, word by word', outcomes.same],
        ['answers with the fact that only the document knows', outcomes.found],
        ['left by the client for good', outcomes.cancelled],
        ['wrong answers', outcomes.wrong],
        ['requests that ended with an error', outcomes.error],
        ['requests without an end', outcomes.unsettled],
        ['transfers or sequences left behind', unsettled],
        ['clients that left in the midst', report.departures],
        ['producers killed', report.kills],
        ['prompt tokens', report.tokens],
        ['of them from the cache', report.reusedTokens],
        ['MB of KV verified', Math.round(report.kvBytes / 1e6)],
      ],
    ),
    '',
    ...counts('way', report.ways),
    '',
    ...counts('fallback', report.fallbacks),
    '',
    ...counts('remote attempt that failed', report.failedAttempts),
    '',
    ...counts('fault of a connection', report.faults),
    '',
    'Memory after a collection of garbage, with nothing running. The first row of a process is after the warm-up.',
    '',
    ...census(report),
    '',
    'Change per 100 transfers after the warm-up, of processes that lived as long as the soak:',
    '',
    ...table(
      ['process', 'RSS MiB', 'heap MiB', 'external MiB', 'descriptors'],
      slopes(report).map(({ name, residentMib, heapMib, externalMib, descriptors }) => [
        name,
        ...[residentMib, heapMib, externalMib, descriptors].map((value) => value.toFixed(2)),
      ]),
    ),
    ...(report.problems.length === 0 ? [] : ['', ...report.problems.map((problem) => `- ${problem}`)]),
    '',
  ].join('\n');
}

function census({ censuses }: SoakReport): string[] {
  const names = Object.keys(censuses[0]?.samples ?? {});
  const rows = names.flatMap((name) =>
    censuses.flatMap(({ transfers, samples }) => {
      const sample = samples[name];
      if (sample === undefined) return [];
      const { residentBytes, threads, descriptors, kinds, node } = sample;
      const mib = [residentBytes, node.heapUsed, node.external, node.arrayBuffers].map((bytes) =>
        (bytes / MIB).toFixed(1),
      );
      const handles = Object.values(node.resources).reduce((sum, count) => sum + count, 0);
      return [[name, transfers, ...mib, descriptors, kinds['socket'] ?? 0, handles, threads]];
    }),
  );
  const figures = [
    'RSS MiB',
    'heap MiB',
    'external MiB',
    'buffers MiB',
    'descriptors',
    'sockets',
    'handles',
    'threads',
  ];
  return table(['process', 'transfers', ...figures], rows);
}

function counts(heading: string, of: Readonly<Record<string, number>>): string[] {
  const rows = Object.entries(of).sort(([a], [b]) => a.localeCompare(b));
  return table([heading, 'count'], rows.length === 0 ? [['none', 0]] : rows);
}

function table(headings: readonly string[], rows: readonly (readonly (string | number)[])[]): string[] {
  const texts = [headings, ...rows].map((row) => row.map(String));
  const widths = headings.map((_, column) => Math.max(...texts.map((row) => row[column]?.length ?? 0)));
  const line = (row: readonly string[]): string =>
    `| ${row.map((text, column) => (column === 0 ? text.padEnd(widths[0] ?? 0) : text.padStart(widths[column] ?? 0))).join(' | ')} |`;
  const rule = widths.map((width, column) => (column === 0 ? '-'.repeat(width) : `${'-'.repeat(width - 1)}:`));
  const [head = [], ...body] = texts;
  return [line(head), line(rule), ...body.map(line)];
}
