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

  it('does not take advice about memory for news', () => {
    lines.push(Buffer.from('(EngineCore pid=7) WARNING 11-30 21:15:00 [a.py:1] lower this to not run out of memory\n'));
    expect(lines.matched).toBe(false);
    lines.push(Buffer.from('(EngineCore pid=7) ERROR 11-30 21:15:00 [a.py:1] out of memory\n'));
    expect(lines.matched).toBe(true);
  });
});

describe('the log of a worker that knows prompts', () => {
  const PROMPT = [40121, 17, 9008, 23];
  const forms = [
    String(PROMPT),
    `[${PROMPT.join(', ')}]`,
    `(${PROMPT.join(' ')})`,
    `ValueError: cannot compute ${JSON.stringify(PROMPT)} at 17.`,
    `tensor([40121,    17, 9008], device='cuda:0')`,
    `{"prompt_token_ids": [40121,17]}`,
    `NewRequestData(req_id=a40121,prompt_token_ids=[40121, 17])`,
    `(EngineCore pid=7) ERROR 11-30 21:15:00 [core.py:11] token 40121`,
    `[40121, 17] ERROR 40121`,
    `(40121 pid=17) ERROR`,
    `ERROR 40121-12 40:12:17 [40121] x`,
    'x40121y_17z ४०१२१',
    `  File "a", line 3, in f; token 40121`,
    `  File "[17]", line 9008, in [40121]`,
    '\\x28\\x11 0x9cb9',
  ];

  it.each(forms)('has no number of one in %j', (form) => {
    lines.hideNumbers();
    lines.push(Buffer.from(`${form}\n`));
    lines.end();
    const [, text = ''] = written[0] ?? [];
    expect(text).not.toMatch(/40121|४|\b17\b|9008|\b23\b|x11|x28/);
  });

  it('still says what happened, and where', () => {
    lines.hideNumbers();
    const kept = [
      '(EngineCore pid=7) ERROR 11-30 21:15:00 [v1/engine/core.py:1100] Traceback (most recent call last):',
      '(EngineCore pid=7) ERROR 11-30 21:15:00 [v1/engine/core.py:1100]   File "/x/v1/worker.py", line 371, in <lambda>',
      'RuntimeError: expected bfloat16, found float32',
    ];
    lines.push(
      Buffer.from(`${kept.join('\n')}\ntorch.OutOfMemoryError: Tried to allocate 2.00 GiB. GPU 0 has 3 [1, 2, 3]\n`),
    );
    expect(written.map(([, line]) => line)).toEqual([
      ...kept,
      'torch.OutOfMemoryError: Tried to allocate # GiB. GPU # has #]',
    ]);
    expect(lines.last).toBe('torch.OutOfMemoryError: Tried to allocate # GiB. GPU # has #]');
  });

  it('is whole until then', () => {
    lines.push(Buffer.from('INFO GPU KV cache size: 120,000 tokens\n'));
    expect(written).toEqual([['debug', 'INFO GPU KV cache size: 120,000 tokens']]);
  });
});
