import { afterEach, describe, expect, it, vi } from 'vitest';

import { EXIT, ServiceError, runCommandLine, type Command } from '../src/index.js';

const stderr = vi.spyOn(process.stderr, 'write').mockImplementation(() => true);
afterEach(() => stderr.mockClear());
const shown = (): string => stderr.mock.calls.map(([text]) => String(text)).join('');

const commands: Command[] = [
  { words: ['run'], flags: ['config'], run: ({ config }) => Promise.resolve(config === 'good' ? 0 : 7) },
  {
    words: ['identity', 'create'],
    flags: ['dir'],
    run: () => Promise.reject(new ServiceError('STATE_LOCKED', 'taken')),
  },
  { words: ['check'], flags: [], run: () => Promise.reject(new ServiceError('CONFIG_INVALID', 'wrong')) },
];
const call = (...argv: string[]): Promise<number> => runCommandLine({ name: 'tool', argv, commands });

describe('runCommandLine', () => {
  it('passes the flags to the command and its exit code on', async () => {
    expect(await call('run', '--config', 'good')).toBe(0);
    expect(await call('run', '--config=other')).toBe(7);
  });

  it('shows an error as one line with its code', async () => {
    expect(await call('identity', 'create', '--dir', 'x')).toBe(EXIT.failed);
    expect(shown()).toBe('tool: STATE_LOCKED: taken\n');
    expect(await call('check')).toBe(EXIT.usage);
  });

  it.each([
    [[]],
    [['identity']],
    [['fly']],
    [['run']],
    [['run', '--config']],
    [['run', '--config', 'a', 'b']],
    [['run', '--x']],
  ])('answers %j with the usage', async (argv) => {
    expect(await call(...argv)).toBe(EXIT.usage);
    expect(shown()).toContain('tool run --config CONFIG');
    expect(shown()).toContain('tool identity create --dir DIR');
  });
});
