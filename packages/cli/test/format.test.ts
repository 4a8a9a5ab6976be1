import { describe, expect, it } from 'vitest';
import { timelineTable } from '../src/ask/timeline.js';
import { formatBytes, formatCount, formatDuration, formatTable } from '../src/format.js';
import { printable, StatusOutput, wantsColour, type OutputStream } from '../src/terminal.js';
import { SUMMARY } from './support/decoder.js';

class Sink implements OutputStream {
  text = '';
  readonly columns = 40;
  constructor(readonly isTTY: boolean) {}
  write(text: string): boolean {
    this.text += text;
    return true;
  }
}

describe('formats', () => {
  it.each([
    [0.25, '0.3 ms'],
    [950.4, '950 ms'],
    [1234, '1.23 s'],
    [12_345, '12.3 s'],
    [125_400, '2 min 05 s'],
  ])('a duration of %d ms as %s', (ms, text) => expect(formatDuration(ms)).toBe(text));

  it.each([
    [0, '0 B'],
    [999, '999 B'],
    [12_300, '12.3 kB'],
    [8_421_376, '8.42 MB'],
    [1_827_000_000, '1.83 GB'],
  ])('%d bytes as %s', (bytes, text) => expect(formatBytes(bytes)).toBe(text));

  it('counts with separators', () => expect(formatCount(131_072.4)).toBe('131,072'));

  it('aligns the columns of a table', () => {
    const rows = [
      ['time', 'what'],
      ['12', 'a'],
    ];
    expect(formatTable(rows, [0])).toBe('time  what\n  12  a');
  });

  it('puts the timeline in order, with the steps between', () => {
    const table = timelineTable({
      ...SUMMARY,
      prefill: 'remote',
      timeline: { done: 1300, received: 0, firstToken: 1234 },
    });
    const lines = table.split('\n');
    expect(lines.slice(1, 4).map((line) => line.trim().split(/ {2,}/))).toEqual([
      ['0.0 ms', '+0.0 ms', 'request received'],
      ['1.23 s', '+1.23 s', 'first token'],
      ['1.30 s', '+66 ms', 'answer complete'],
    ]);
    expect(table).toContain('87 % of the bytes');
  });
});

describe('StatusOutput', () => {
  it('rewrites one line on a terminal and removes it before other text', () => {
    const sink = new Sink(true);
    const output = new StatusOutput(sink, { quiet: false, env: { NO_COLOR: '1' } });
    output.status('x'.repeat(100));
    output.line('done');
    expect(sink.text).toBe(`\r\u001b[K${'x'.repeat(38)}…\r\u001b[Kdone\n`);
  });

  it('writes plain lines elsewhere, and nothing but errors when quiet', () => {
    const plain = new Sink(false);
    const output = new StatusOutput(plain, { quiet: false, env: {} });
    output.status('not shown');
    output.line(output.paint('red', 'shown'));
    expect(plain.text).toBe('shown\n');
    const quiet = new Sink(true);
    const silent = new StatusOutput(quiet, { quiet: true, env: {} });
    silent.status('not shown');
    silent.line('not shown');
    silent.always('shown');
    expect(quiet.text).toBe('shown\n');
  });

  it.each([
    [true, {}, true],
    [true, { NO_COLOR: '' }, true],
    [true, { NO_COLOR: '1' }, false],
    [true, { TERM: 'dumb' }, false],
    [false, {}, false],
  ])('uses colours on a terminal=%s with %j: %s', (isTTY, env, colour) => {
    expect(wantsColour(new Sink(isTTY), env)).toBe(colour);
  });

  it('lets no control character through', () => {
    expect(printable('a\u001b[2Jb\tc\nd\u0007\u009be\r')).toBe('a[2Jb\tc\nde');
  });
});
