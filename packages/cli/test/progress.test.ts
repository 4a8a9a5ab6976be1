import { describe, expect, it } from 'vitest';
import { describeSummary, ProgressReporter } from '../src/ask/progress.js';
import type { Progress, Summary } from '../src/decoder-client.js';
import { StatusOutput } from '../src/terminal.js';
import { SUMMARY } from './support/decoder.js';

function reporterOn(isTTY: boolean) {
  const written: string[] = [];
  const stream = { isTTY, columns: 100, write: (text: string) => written.push(text) > 0 };
  const output = new StatusOutput(stream, { quiet: false, env: { NO_COLOR: '1' } });
  return { reporter: new ProgressReporter(output), written };
}

const event = (more: Partial<Progress>): Progress => ({
  ...{ phase: 'prefill', where: 'remote', tokens: 0, total: 0, tokensPerSecond: 0, bytes: 0, fallback: null },
  ...more,
});

describe('ProgressReporter', () => {
  const turns = [
    event({ tokens: 512, total: 1024, tokensPerSecond: 900 }),
    event({ phase: 'transfer', tokens: 0, total: 1024, bytes: 2_000_000 }),
    event({ tokens: 1024, total: 1024, tokensPerSecond: 900, bytes: 2_000_000 }),
    event({ phase: 'transfer', tokens: 512, total: 1024, bytes: 4_000_000 }),
  ];

  it('shows prefill and bytes on one line of a terminal until only the transfer is left', () => {
    const { reporter, written } = reporterOn(true);
    turns.forEach((turn) => reporter.report(turn));
    expect(written.map((text) => text.replace('\r\u001b[K', ''))).toEqual([
      'remote prefill · 512 of 1,024 tokens · 900 tokens/s',
      'remote prefill · 512 of 1,024 tokens · 900 tokens/s · 2.00 MB received',
      'remote prefill · 1,024 of 1,024 tokens · 900 tokens/s · 2.00 MB received',
      'receiving the KV cache · 512 of 1,024 tokens · 4.00 MB received',
    ]);
  });

  it('tells each phase once elsewhere', () => {
    const { reporter, written } = reporterOn(false);
    turns.forEach((turn) => reporter.report(turn));
    expect(written).toEqual([
      'remote prefill · 512 of 1,024 tokens · 900 tokens/s\n',
      'receiving the KV cache · 0 of 1,024 tokens · 2.00 MB received\n',
    ]);
  });
});

describe('describeSummary', () => {
  const summary = {
    ...SUMMARY,
    prefill: 'remote',
    timeline: { prefillStart: 10, prefillEnd: 1010 },
  } satisfies Summary;

  it('names the producer, the rate, and what was moved', () => {
    expect(describeSummary({ ...summary, promptTokens: 2000, cachedTokens: 500 })).toBe(
      'prefilled by bench · 2,000 tokens · 500 cached · 1,500 tokens/s · ' +
        'first token after 1.23 s · 12.3 MB of KV in 34 shards',
    );
  });

  it('gives no rate of a prefill that two machines did', () => {
    expect(describeSummary({ ...summary, prefill: 'resumed' })).toMatch(
      /^prefilled by bench, finished locally · [\d,]+ tokens · first token/,
    );
  });

  it('leaves out what is not known', () => {
    const local = { ...summary, prefill: 'local', timeline: {}, kvBytes: 0, shards: 0, producer: null } as const;
    expect(describeSummary({ ...local, ttftMs: 43 })).toBe(
      'prefilled locally · 8,012 tokens · first token after 43 ms',
    );
  });
});
