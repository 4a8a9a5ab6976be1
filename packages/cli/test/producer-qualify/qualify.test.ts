// The built CLI with the built producer and real llama.cpp on both sides.
import { once } from 'node:events';
import { access, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { isProcessRunning } from '@muser/service-kit';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { runCli, startCli } from '../support/cli.js';

const GGUF = fileURLToPath(new URL('../../../../models/muse-nano/muse-nano-q8_0.gguf', import.meta.url));
const PACKAGE = fileURLToPath(new URL('../../package.json', import.meta.url));
const LIMIT_MS = 120_000;

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'muser-qualify-'));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

const qualify = (...flags: string[]): ReturnType<typeof runCli> =>
  runCli(['producer', 'qualify', '--backend', 'llama', '--state', join(folder, 'state'), ...flags], {
    timeout: LIMIT_MS,
    env: { MUSER_PRODUCER_THREADS: '1', MUSER_PRODUCER_MAX_PROMPT_TOKENS: '4096' },
  });

const startQualify = (state: string): ReturnType<typeof startCli> =>
  startCli(['producer', 'qualify', '--backend', 'llama', '--state', state, '--gguf', GGUF], {
    timeout: LIMIT_MS,
    env: { MUSER_PRODUCER_THREADS: '1', MUSER_PRODUCER_MAX_PROMPT_TOKENS: '4096' },
  });

async function untilSays({ stderr }: ReturnType<typeof startCli>, text: string): Promise<void> {
  if (stderr === null || stderr === undefined) throw new Error('the child has no standard error');
  for (let said = ''; !said.includes(text);) said += String((await once(stderr, 'data'))[0]);
}

describe('muser producer qualify', () => {
  it(
    'passes a pair, tells how far it is, and leaves a record that can be checked',
    async () => {
      const file = join(folder, 'pair.json');
      const { exitCode, stdout, stderr } = await qualify('--gguf', GGUF, '--out', file, '--json');
      expect({ exitCode, stderr }).toMatchObject({
        exitCode: 0,
        stderr: expect.stringContaining('prompt 5 of 5') as string,
      });
      const { record, signer } = JSON.parse(stdout) as { record: { verdict: string }; signer: string };
      expect([record.verdict, signer]).toEqual(['passed', 'local']);

      const checked = await qualify('--verify', file);
      expect(checked).toMatchObject({ exitCode: 0, stderr: '' });
      expect(checked.stdout).toMatch(/\nPASSED, /);
      expect(checked.stdout).toContain('muse-nano (q8_0, llama ');

      const content = await readFile(file, 'utf8');
      await writeFile(file, content.replace('"equalTokens": 18', '"equalTokens": 17'));
      const changed = await qualify('--verify', file);
      expect(changed).toMatchObject({ exitCode: 1, stdout: '' });
      expect(changed.stderr).toContain('SIGNATURE_INVALID');
    },
    LIMIT_MS,
  );

  it(
    'names the layer and the cause when it fails',
    async () => {
      const other = join(folder, 'other.gguf');
      const bytes = await readFile(GGUF);
      const key = 'muse-glimmer.rope.freq_base';
      bytes.writeFloatLE(10_000, bytes.indexOf(key) + key.length + 4);
      await writeFile(other, bytes);
      const file = join(folder, 'failed.json');
      const { exitCode, stdout } = await qualify('--model', other, '--gguf', GGUF, '--out', file);
      expect(exitCode).toBe(1);
      expect(stdout).toContain("ropeBase is 10000 in the producer's model and 500000 in the reference's");
      expect(stdout).toContain('first layer that differs: 0 (K), in the prompt of ');
      expect(stdout).toMatch(/likely cause: rope-base: .*base 10000;/);
      expect(stdout).toMatch(/\nFAILED, /);
      expect((await qualify('--verify', file)).exitCode).toBe(1);
    },
    LIMIT_MS,
  );

  it(
    'ends with Ctrl-C, and leaves no lock and no record',
    async () => {
      const state = join(folder, 'stopped');
      const child = startQualify(state);
      await untilSays(child, 'prompt 1 of');
      child.kill('SIGINT');
      expect((await child).exitCode).toBe(130);
      for (const left of ['lock', 'qualification.json']) {
        await expect(access(join(state, 'producer', left))).rejects.toMatchObject({ code: 'ENOENT' });
      }
    },
    LIMIT_MS,
  );

  it.each([
    [['--gguf', '/nonexistent.gguf'], 2, 'there is no file /nonexistent.gguf'],
    [['--gguf', '/tmp'], 2, '/tmp is not a file'],
    [['--model', '/nonexistent.gguf'], 2, 'there is no file /nonexistent.gguf'],
    [['--gguf', PACKAGE], 1, `${PACKAGE}: no GGUF file`],
    [['--model', PACKAGE], 1, `${PACKAGE}: no GGUF file`],
    [['--out', ''], 2, 'error: '],
    [['--out', '/tmp'], 2, '/tmp is there, and is not a regular file'],
    [['--out', GGUF], 2, 'is not the record of a qualification: it is not replaced'],
    [['--out', PACKAGE], 2, 'is not the record of a qualification: it is not replaced'],
    [['--out', join(PACKAGE, 'below.json')], 2, 'cannot be written (ENOTDIR)'],
    [['--verify', ''], 2, 'error: '],
    [['--verify', '/nonexistent.json'], 1, 'NOT_FOUND'],
    [['--verify', GGUF], 1, 'MESSAGE_TOO_LARGE'],
    [['--verify', PACKAGE], 1, 'MESSAGE_INVALID'],
    [['--backend', 'other'], 2, 'Allowed choices are llama, vllm'],
  ])('refuses %j', async (flags, code, text) => {
    const { exitCode, stderr } = await qualify(...flags);
    expect(exitCode).toBe(code);
    expect(stderr).toContain(text);
    expect(stderr).not.toMatch(/checkModelFile|loadModel|prompt 1 of/);
  });

  it.each(['qualify-config.json', 'qualification-key.json'])('does not replace its own %s', async (name) => {
    const file = join(folder, 'state', 'producer', name);
    const { exitCode, stderr } = await qualify('--gguf', GGUF, '--out', file);
    expect({ exitCode, stderr }).toMatchObject({
      exitCode: 2,
      stderr: expect.stringContaining('not replaced') as string,
    });
  });

  it.each(['has loaded', 'prompt 1 of'])(
    'takes its engines along when it is killed at "%s"',
    async (moment) => {
      const state = join(folder, `killed-${moment.split(' ')[0]}`);
      const child = startQualify(state);
      await untilSays(child, moment);
      const lock = join(state, 'producer', 'lock');
      const { pid } = JSON.parse(await readFile(lock, 'utf8')) as { pid: number };
      expect(await isProcessRunning(pid)).toBe(true);
      child.kill('SIGKILL');
      await child;
      await expect.poll(() => isProcessRunning(pid), { timeout: 30_000 }).toBe(false);
      await expect(access(lock)).rejects.toMatchObject({ code: 'ENOENT' });
      await expect(access(join(state, 'producer', 'qualification.json'))).rejects.toMatchObject({ code: 'ENOENT' });
    },
    LIMIT_MS,
  );

  it('has a help with examples', async () => {
    const { exitCode, stdout } = await runCli(['producer', 'qualify', '--help']);
    expect(exitCode).toBe(0);
    expect(stdout).toContain('Examples:');
    expect(stdout).toContain('--verify');
  });
});
