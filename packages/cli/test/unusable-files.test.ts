import { execFileSync } from 'node:child_process';
import { mkdir, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { runCli } from './support/cli.js';
import { temporaryFolder } from './support/models.js';

const PLAN = ['producer', 'plan', '--memory', '128GiB', '--model'];

let folder: { path: string; remove: () => Promise<void> };
let at: (name: string) => string;
beforeAll(async () => {
  folder = await temporaryFolder();
  at = (name) => join(folder.path, name);
  for (const name of ['pipe-config', 'list', 'null-config']) await mkdir(at(name));
  for (const name of ['pipe', 'pipe.json', 'pipe-config/config.json']) execFileSync('mkfifo', [at(name)]);
  await writeFile(at('list/config.json'), '[]');
  await writeFile(at('null-config/config.json'), 'null');
  await symlink('loop', at('loop'));
  await symlink('/dev/zero', at('zeros'));
});
afterAll(() => folder.remove());

describe('what is no file to be read is refused at once, with its path and an object for --json', () => {
  const cases: [string[], string, string][] = [
    [['models', 'check'], 'pipe', 'INVALID_REQUEST'],
    [['models', 'check'], 'pipe-config', 'CONFIG_INVALID'],
    [['models', 'check'], 'zeros', 'INVALID_REQUEST'],
    [['models', 'check'], 'loop', 'INVALID_REQUEST'],
    [['models', 'check'], 'list', 'MODEL_LOAD_FAILED'],
    [['models', 'check'], 'null-config', 'MODEL_LOAD_FAILED'],
    [['models', 'verify'], 'pipe.json', 'CONFIG_INVALID'],
    [['models', 'verify'], 'loop', 'INVALID_REQUEST'],
    [PLAN, 'pipe', 'CONFIG_INVALID'],
    [PLAN, 'pipe-config', 'CONFIG_INVALID'],
    [PLAN, 'loop', 'INVALID_REQUEST'],
  ];
  it.each(cases)('%j %s', async (command, name, code) => {
    const run = await runCli([...command, at(name), '--json']);
    const { error } = JSON.parse(run.stdout) as { error: { code: string; message: string } };
    const path = name === 'zeros' ? '/dev/zero' : at(name);
    expect(error).toEqual({ code, message: expect.stringContaining(path) as string });
    expect(error.message).not.toMatch(/: :|no config\.json/);
    expect(run.stderr).toContain(`error: ${error.message} (${code})`);
    expect(run.stderr).not.toMatch(/\n\s+at /);
  });

  it('a pipe among the GGUF files of a folder', async () => {
    await mkdir(at('gguf'));
    execFileSync('mkfifo', [at('gguf/model.gguf')]);
    const run = await runCli(['models', 'check', at('gguf')]);
    expect(run).toMatchObject({ exitCode: 2, stdout: '' });
    expect(run.stderr).toContain('model.gguf is not a regular file');
  });
});

describe('damaged manifests', () => {
  it('are reported, and keep nobody from the other models', async () => {
    const manifests = at('models/manifests');
    await mkdir(join(manifests, 'folder.json'), { recursive: true });
    await writeFile(join(manifests, 'broken.json'), '{');
    execFileSync('mkfifo', [join(manifests, 'pipe.json')]);
    const env = { MUSER_MODELS: at('models') };

    const list = await runCli(['models', 'list', '--json'], { env });
    const { models, damaged } = JSON.parse(list.stdout) as { models: { name: string }[]; damaged: { path: string }[] };
    expect(list.exitCode).toBe(1);
    expect(models.map(({ name }) => name)).toContain('muse-nano');
    expect(damaged.map(({ path }) => path)).toEqual(
      ['broken', 'folder', 'pipe'].map((name) => join(manifests, `${name}.json`)),
    );
    for (const { path } of damaged) expect(list.stderr).toContain(path);

    expect(await runCli(['models', 'verify', 'muse-nano'], { env })).toMatchObject({ exitCode: 0 });
    const broken = await runCli(['models', 'verify', 'broken'], { env });
    expect(broken).toMatchObject({ exitCode: 1, stdout: '' });
    expect(broken.stderr).toMatch(/broken\.json is no JSON \(CONFIG_INVALID\)/);
  });
});

describe('with --json the object is there whichever part fails', () => {
  it.each([
    [['producer', '--state'], 'NOT_FOUND'],
    [['node', 'list', '--state'], 'PEER_UNREACHABLE'],
  ])('%j', async (command, code) => {
    const run = await runCli([...command, at('fresh'), '--json']);
    expect(JSON.parse(run.stdout)).toMatchObject({ error: { code } });
  });

  it('a producer whose configuration is wrong says what is wrong with it', async () => {
    await mkdir(at('gb10/producer/identity'), { recursive: true, mode: 0o700 });
    const run = await runCli(['producer', '--backend', 'llama', '--state', at('gb10'), '--json'], {
      env: { MUSER_PRODUCER_MAX_CONCURENT: '2' },
    });
    expect(run.exitCode).toBe(2);
    expect(JSON.parse(run.stdout)).toEqual({
      error: {
        code: 'CONFIG_INVALID',
        message: expect.stringMatching(
          /^the producer did not start: .*unknown variable MUSER_PRODUCER_MAX_CONCURENT/,
        ) as string,
      },
    });
    expect(run.stderr).toContain('producer.log');
  });
});
