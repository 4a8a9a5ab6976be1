import { rm, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { RateMeter, progressLine } from '../../src/models/progress.js';
import { runCli } from '../support/cli.js';
import { temporaryFolder } from '../support/models.js';

let folder: { path: string; remove: () => Promise<void> };
beforeEach(async () => {
  folder = await temporaryFolder();
});
afterEach(() => folder.remove());

describe('muser models verify', () => {
  it('tells every kind of damage apart, and pull mends it', async () => {
    const to = join(folder.path, 'nano');
    expect(await runCli(['models', 'pull', 'muse-nano', '--to', to])).toMatchObject({ exitCode: 0 });
    await rm(join(to, 'hf/generation_config.json'));
    // Replaced, not written to: the file may share its bytes with the checkout's.
    await rm(join(to, 'hf/config.json'));
    await writeFile(join(to, 'hf/config.json'), Buffer.alloc(2129, 'x'));
    await rm(join(to, 'hf/tokenizer.json'));
    await writeFile(join(to, 'hf/tokenizer.json'), 'x');
    await truncate(join(to, 'hf/tokenizer.json'), 7);
    await writeFile(join(to, 'hf/extra.safetensors'), 'x');

    const run = await runCli(['models', 'verify', to, '--json']);
    expect(run.exitCode).toBe(1);
    const result = JSON.parse(run.stdout) as { files: { path: string; state: string }[]; unlisted: string[] };
    const states = Object.fromEntries(result.files.map(({ path, state }) => [path, state]));
    expect(states).toMatchObject({
      'hf/generation_config.json': 'missing',
      'hf/config.json': 'wrong digest',
      'hf/tokenizer.json': 'wrong size',
      'hf/model.safetensors': 'ok',
    });
    expect(result.unlisted).toEqual(['hf/extra.safetensors']);

    expect(await runCli(['models', 'pull', 'muse-nano', '--to', to])).toMatchObject({ exitCode: 0 });
    expect((await runCli(['models', 'verify', to])).exitCode).toBe(0);
  });

  it('of the model in the checkout needs no pull', async () => {
    expect(await runCli(['models', 'verify', 'muse-nano'])).toMatchObject({ exitCode: 0 });
  });

  it('of a name that nobody knows says which are known', async () => {
    const run = await runCli(['models', 'verify', 'muse-giga']);
    expect(run).toMatchObject({ exitCode: 2, stdout: '' });
    expect(run.stderr).toContain('muse-nano');
  });
});

describe('help', () => {
  const commands = ['pull', 'list', 'verify', 'pin', 'check'].map((name) => ['models', name]);
  it.each([...commands, ['producer', 'plan']])('of %s %s has examples and exit codes', async (...command) => {
    const { exitCode, stdout, stderr } = await runCli([...command, '--help']);
    expect({ exitCode, stderr }).toEqual({ exitCode: 0, stderr: '' });
    expect(stdout).toContain('Examples:');
    expect(stdout).toContain('Exit codes: 0 ');
  });
});

describe('wrong usage of muser models', () => {
  const cases: [string, string[], RegExp][] = [
    ['no command', ['models'], /Usage: muser models/],
    ['too many jobs', ['models', 'pull', 'muse-nano', '--jobs', '17'], /1 to 16/],
    ['a manifest that is not there', ['models', 'pull', './none.json'], /no manifest/],
    ['a hub for a model that is on none', ['models', 'pull', 'muse-nano', '--from', 'hub'], /on no hub/],
    ['a password in an address', ['models', 'pull', 'muse-nano', '--from', 'https://a:b@c/'], /password/],
  ];
  it.each(cases)('(%s) ends with code 2', async (_, args, message) => {
    const run = await runCli(args, { env: { HOME: folder.path } });
    expect(run).toMatchObject({ exitCode: 2, stdout: '' });
    expect(run.stderr).toMatch(message);
  });
});

describe('progress', () => {
  it('has the rate of the last seconds, and the time that is left at that rate', () => {
    const meter = new RateMeter();
    expect(meter.rate()).toBeNull();
    for (let second = 0; second <= 10; second += 1) meter.add(second * 1000, second * 100);
    expect(meter.rate()).toBe(100);
    for (let second = 11; second <= 20; second += 1) meter.add(second * 1000, 1000 + (second - 10) * 3000);
    expect(meter.rate()).toBe(3000);
    expect(progressLine('m', 31_000, 61_000, meter.rate())).toBe('m: 31.0 kB of 61.0 kB, 3.00 kB/s, 10.0 s left');
  });

  it('says nothing of a time when nothing comes', () => {
    expect(progressLine('m', 0, 10, 0)).toBe('m: 0 B of 10 B');
    expect(progressLine('m', 10, 10, 5)).toBe('m: 10 B of 10 B, 5 B/s');
  });
});
