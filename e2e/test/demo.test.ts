import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { muser, startMuser } from './support/muser.js';

describe('muser demo', { timeout: 240_000 }, () => {
  let temporary: string;
  beforeEach(async () => {
    temporary = await mkdtemp(join(tmpdir(), 'muser-demo-test-'));
  });
  afterEach(() => rm(temporary, { recursive: true, force: true }));

  it('ends with one JSON line: equal answers, a remote prefill; and leaves nothing behind', async () => {
    const env = { TMPDIR: temporary, PATH: process.env['PATH'] ?? '' };
    const { exitCode, stdout, stderr } = await muser(['demo', '--json'], { env });
    expect(exitCode, stderr).toBe(0);
    const last = JSON.parse(stdout.split('\n').at(-1) ?? '') as Record<string, unknown>;
    expect(last).toEqual({
      answer: expect.stringContaining('attic') as string,
      localAnswer: last['answer'],
      prefill: 'remote',
      promptTokens: expect.any(Number) as number,
      ttftMs: { local: expect.any(Number) as number, remote: expect.any(Number) as number },
      kvBytes: expect.any(Number) as number,
      overlap: expect.any(Number) as number,
      shards: expect.any(Number) as number,
      producer: { backend: 'llama' },
    });
    expect(last['promptTokens']).toBeGreaterThan(7_900);
    expect(last['overlap']).toBeGreaterThan(0);
    expect(stderr).toMatch(/first token after .+\n.*answer .+attic.+attic/);
    expect(stderr).toContain('not expected to be faster here');
    expect(await readdir(temporary)).toEqual([]);
  });

  it('cleans up after Ctrl-C', async () => {
    const child = startMuser(['demo'], { env: { TMPDIR: temporary } });
    const messages = createInterface({ input: child.stderr ?? process.stdin });
    await new Promise<void>((resolve) => {
      messages.on('line', (line) => {
        if (line.includes('starting the producer')) resolve();
      });
    });
    child.kill('SIGINT');
    expect((await child).exitCode).toBe(130);
    expect(await readdir(temporary)).toEqual([]);
  });
});
