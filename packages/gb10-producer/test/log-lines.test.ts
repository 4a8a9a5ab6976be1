import { createLogger } from '@muser/service-kit';
import { beforeEach, describe, expect, it } from 'vitest';

import { LogLines } from '../src/bridge/log-lines.js';

let written: [string, string][];
let lines: LogLines;

beforeEach(() => {
  written = [];
  const logger = createLogger('test', 'silent');
  for (const level of ['debug', 'warn', 'error'] as const)
    logger[level] = (line: string) => written.push([level, line]);
  lines = new LogLines(logger, /out of memory/);
});

describe("a worker's log", () => {
  it('is cut into lines, each with its level', () => {
    lines.push(Buffer.from('INFO a\n(EngineCore pid=7) WARNING 11-30 b\nERROR c\r\nplain\nrest wi'));
    lines.push(Buffer.from('thout an end é'.slice(0, -1)));
    lines.push(Buffer.from([0xc3]));
    lines.push(Buffer.from([0xa9]));
    lines.end();
    expect(written).toEqual([
      ['debug', 'INFO a'],
      ['warn', '(EngineCore pid=7) WARNING 11-30 b'],
      ['error', 'ERROR c'],
      ['debug', 'plain'],
      ['debug', 'rest without an end é'],
    ]);
    expect(lines.last).toBe('rest without an end é');
  });

  it('needs no memory for a line that never ends', () => {
    for (let block = 0; block < 100; block += 1) lines.push(Buffer.alloc(10_000, 'x'));
    lines.end();
    expect(written.map(([, line]) => line.length)).toEqual([2_000]);
  });

  it('says that memory ran out when one of its last lines does', () => {
    lines.push(Buffer.from('CUDA out of memory\n'));
    expect(lines.matched).toBe(true);
    lines.push(Buffer.from('on we go\n'.repeat(300)));
    expect(lines.matched).toBe(false);
  });
});
