import { closeSync, mkdtempSync, openSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterEach, beforeEach, describe, expect, it } from 'vitest';

import { createLogger, flushLogger, type LogLevel, type Logger } from '../src/index.js';

let folder: string;
let file: string;
let descriptor: number;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'muser-log-'));
  file = join(folder, 'log');
  descriptor = openSync(file, 'a');
});
afterEach(() => {
  closeSync(descriptor);
  rmSync(folder, { recursive: true });
});

async function linesOf(level: LogLevel, write: (logger: Logger) => void): Promise<Record<string, unknown>[]> {
  const logger = createLogger('part', level, descriptor);
  write(logger);
  await flushLogger(logger);
  return readFileSync(file, 'utf8')
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as Record<string, unknown>);
}

describe('createLogger', () => {
  it('writes one JSON line for each event with level, time, process and component', async () => {
    const [line, child] = await linesOf('info', (logger) => {
      logger.info({ port: 1 }, 'listening');
      logger.debug('left out');
      logger.child({ part: 'registry' }).warn('slow');
    });
    expect(line).toMatchObject({ level: 'info', component: 'part', port: 1, msg: 'listening', pid: process.pid });
    expect(line?.['time']).toMatch(/^\d{4}-.*Z$/);
    expect(child).toMatchObject({ level: 'warn', component: 'part', part: 'registry', msg: 'slow' });
  });

  // promise: The value of a secret or of a prompt is never logged.
  it('never writes the value of a secret or of a prompt', async () => {
    await linesOf('trace', (logger) => {
      logger.info({ token: 'hunter2', request: { authorization: 'Bearer hunter2', body: { prompt: 'hunter2' } } });
      logger.info({
        prompt: 'hunter2',
        identity: { tlsKeyPem: 'hunter2', seed: 'hunter2' },
        headers: { a: 'hunter2' },
      });
    });
    const text = readFileSync(file, 'utf8');
    expect(text).toContain('[redacted]');
    expect(text).not.toContain('hunter2');
  });

  it('keeps the cause of an error', async () => {
    const [line] = await linesOf('info', (logger) => {
      logger.error({ err: new Error('outer', { cause: new Error('inner') }) }, 'failed');
    });
    expect(JSON.stringify(line)).toContain('inner');
  });
});
