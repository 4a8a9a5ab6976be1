import type { Progress, Summary } from '../decoder-client.js';
import { formatBytes, formatCount, formatDuration } from '../format.js';
import { printable, type StatusOutput } from '../terminal.js';

/** Shows the way of one request on standard error: a status line on a terminal, a line for each new phase elsewhere. */
export class ProgressReporter {
  /** Prefill and transfer take turns while both run; each is told once. */
  readonly #shown = new Set<string>();
  #prefill: Progress | null = null;
  #fallback = '';

  constructor(private readonly output: StatusOutput) {}

  report(progress: Progress): void {
    this.#reportFallback(progress.fallback);
    if (progress.phase === 'prefill') this.#prefill = progress;
    if (this.output.interactive) {
      this.output.status(describe(this.#combined(progress)));
      return;
    }
    const phase = `${progress.phase} ${progress.where ?? ''}`;
    if (this.#shown.has(phase)) return;
    this.#shown.add(phase);
    this.output.line(describe(progress));
  }

  /** On one line the prefill matters more than the transfer, which is over soon after it. */
  #combined(progress: Progress): Progress {
    const prefill = this.#prefill;
    if (progress.phase !== 'transfer' || prefill === null || prefill.tokens >= prefill.total) return progress;
    return { ...prefill, bytes: progress.bytes };
  }

  finish(summary: Summary): void {
    this.#reportFallback(summary.fallback);
    this.output.line(this.output.paint('dim', describeSummary(summary)));
  }

  #reportFallback(fallback: Progress['fallback']): void {
    if (fallback === null || this.#fallback === fallback.code) return;
    this.#fallback = fallback.code;
    this.output.line(
      this.output.paint('yellow', `going on locally: ${printable(fallback.message)} (${printable(fallback.code)})`),
    );
  }
}

function describe(progress: Progress): string {
  const where = progress.where ?? 'local';
  const parts: string[] = [];
  switch (progress.phase) {
    case 'queued':
      parts.push('waiting');
      break;
    case 'prefill':
      parts.push(`${where} prefill`);
      break;
    case 'transfer':
      parts.push('receiving the KV cache');
      break;
    case 'decode':
      parts.push('decoding');
      break;
  }
  if (progress.total > 0) parts.push(`${formatCount(progress.tokens)} of ${formatCount(progress.total)} tokens`);
  if (progress.tokensPerSecond > 0) parts.push(`${formatCount(progress.tokensPerSecond)} tokens/s`);
  if (progress.bytes > 0) parts.push(`${formatBytes(progress.bytes)} received`);
  return parts.join(' · ');
}

export function describeSummary(summary: Summary): string {
  const way = {
    local: 'prefilled locally',
    remote: `prefilled by ${printable(summary.producer?.name ?? 'a producer')}`,
    resumed: `prefilled by ${printable(summary.producer?.name ?? 'a producer')}, finished locally`,
  }[summary.prefill];
  const parts = [way, `${formatCount(summary.promptTokens)} tokens`];
  if (summary.cachedTokens > 0) parts.push(`${formatCount(summary.cachedTokens)} cached`);
  const rate = prefillRate(summary);
  if (rate !== null) parts.push(`${formatCount(rate)} tokens/s`);
  parts.push(`first token after ${formatDuration(summary.ttftMs)}`);
  if (summary.kvBytes > 0) parts.push(`${formatBytes(summary.kvBytes)} of KV in ${formatCount(summary.shards)} shards`);
  return parts.join(' · ');
}

/** Tokens a second of the prefill; null when two machines had a part in it, or when there is nothing to measure. */
function prefillRate({ prefill, promptTokens, cachedTokens, timeline }: Summary): number | null {
  const { prefillStart = 0, prefillEnd = 0 } = timeline;
  const tokens = promptTokens - cachedTokens;
  if (prefill === 'resumed' || prefillEnd <= prefillStart || tokens <= 1) return null;
  return (tokens * 1000) / (prefillEnd - prefillStart);
}
