import type { Summary } from '../decoder-client.js';
import { formatBytes, formatCount, formatDuration, formatTable } from '../format.js';

const LABELS: Record<string, string> = {
  received: 'request received',
  tokenized: 'prompt tokenized',
  placed: 'producer chosen',
  accepted: 'producer accepted (Begin verified)',
  prefillStart: 'prefill started',
  firstByte: 'first KV byte arrived',
  prefillEnd: 'prefill ended',
  lastByte: 'last KV byte arrived',
  sealed: 'transfer sealed (all verified)',
  installed: 'KV installed',
  lastTokenEvaluated: 'last prompt token evaluated',
  firstToken: 'first token',
  done: 'answer complete',
};

/** The request's timeline as a table, in the order in which things happened. */
export function timelineTable(summary: Summary): string {
  const events = Object.entries(summary.timeline).sort(([, a], [, b]) => a - b);
  const rows: string[][] = [['time', 'step', 'what']];
  let before = 0;
  for (const [key, at] of events) {
    rows.push([formatDuration(at), `+${formatDuration(Math.max(0, at - before))}`, LABELS[key] ?? key]);
    before = at;
  }
  const facts = [
    ['way', summary.prefill],
    ['prompt tokens', `${formatCount(summary.promptTokens)} (${formatCount(summary.cachedTokens)} cached)`],
  ];
  if (summary.kvBytes > 0) {
    facts.push(['KV moved', `${formatBytes(summary.kvBytes)} in ${formatCount(summary.shards)} shards`]);
    facts.push(['installed before the prefill ended', `${(summary.overlap * 100).toFixed(0)} % of the bytes`]);
  }
  return `${formatTable(rows, [0, 1])}\n\n${formatTable(facts)}`;
}
