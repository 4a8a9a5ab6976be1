import { execFileSync } from 'node:child_process';
import { chmod, mkdir, mkdtemp, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { execa } from 'execa';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { CLEAN_ENV, runCli } from './support/cli.js';

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'muser-usage-'));
  await writeFile(join(folder, 'notes.md'), 'The backup tape is kept in the attic.\n');
  await writeFile(join(folder, 'binary'), Buffer.from([0x47, 0x47, 0x55, 0x46, 0, 1]));
  await writeFile(join(folder, 'latin1.txt'), Buffer.from([0x63, 0x61, 0x66, 0xe9]));
  await writeFile(join(folder, 'large.txt'), 'a'.repeat(4 * 1024 * 1024 + 1));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

describe('help', () => {
  it.each([
    [[]],
    [['ask']],
    [['dev']],
    [['node']],
    [['node', 'list']],
    [['node', 'pause']],
    [['node', 'resume']],
    [['doctor']],
    [['demo']],
  ])('of %j is on standard output, with code 0', async (command) => {
    const { exitCode, stdout, stderr } = await runCli([...command, '--help']);
    expect({ exitCode, stderr }).toEqual({ exitCode: 0, stderr: '' });
    expect(stdout).toContain('Usage: muser');
    if (command[0] !== 'node' || command.length === 2) expect(stdout).toContain('Examples:');
  });

  it('documents the exit codes of ask', async () => {
    const { stdout } = await runCli(['ask', '--help']);
    for (const code of ['0 ', '1 ', '2 ', '3 ', '130']) expect(stdout).toContain(`\n  ${code}`);
  });

  it('gives the version', async () => {
    const { exitCode, stdout } = await runCli(['--version']);
    expect(exitCode).toBe(0);
    expect(stdout).toMatch(/^\d+\.\d+\.\d+$/);
  });
});

describe('hints', () => {
  it.each([
    ['./muser', './muser'],
    ['/opt/my tools/muser', "'/opt/my tools/muser'"],
    ['muser', 'muser'],
    ['', 'muser'],
  ])('name the command as it was typed: %s', async (typed, shown) => {
    const env = { MUSER_COMMAND: typed };
    const help = await runCli(['ask', '--help'], { env });
    expect(help.stdout).toContain(`\n  $ ${shown} ask "What does grep do?"\n`);
    const failed = await runCli(['ask', '--url', 'http://127.0.0.1:1', 'x'], { env });
    expect(failed.stderr).toContain(`Start one with \`${shown} dev\``);
  });

  it('are told by the script of a checkout what was typed', async () => {
    const checkout = fileURLToPath(new URL('../../../', import.meta.url));
    const bin = join(folder, 'bin');
    await mkdir(bin);
    // In the place of Node: says what it was told. The script's bootstrap is another matter.
    await writeFile(join(bin, 'node'), '#!/bin/sh\necho "$MUSER_COMMAND"\n', { mode: 0o755 });
    await symlink(join(checkout, 'muser'), join(bin, 'muser'));
    const env = { PATH: `${bin}:${CLEAN_ENV.PATH}` };
    const typed = async (command: string): Promise<string | undefined> =>
      (await execa(command, ['dev'], { cwd: checkout, env, extendEnv: false })).stdout.split('\n').at(-1);
    expect(await typed('./muser')).toBe('./muser');
    expect(await typed(join(checkout, 'muser'))).toBe(join(checkout, 'muser'));
    expect(await typed('muser')).toBe('muser');
  });
});

describe('wrong usage ends with code 2, an explanation, and nothing on standard output', () => {
  const cases: [string, string[], RegExp][] = [
    ['no command', [], /Usage: muser/],
    ['an unknown command', ['frob'], /unknown command 'frob'/],
    ['an unknown flag', ['ask', '--remote', 'x'], /unknown option '--remote'/],
    ['an unknown flag of dev', ['dev', '--prefill', 'local'], /unknown option/],
    ['an argument too many', ['dev', 'now'], /too many arguments/],
    ['two ways at once', ['ask', '--local', '--remote-prefill', 'x'], /cannot be used with/],
    ['a flag and a way', ['ask', '--local', '--prefill', 'auto', 'x'], /cannot be used with/],
    ['an unknown way', ['ask', '--prefill', 'both', 'x'], /Allowed choices are auto, local, remote/],
    ['an unknown producer', ['demo', '--producer', 'tpu'], /Allowed choices are llama, vllm/],
    ['a number that is none', ['ask', '--max-tokens', '1e3', 'x'], /whole number from 1 to 131072/],
    ['a number out of bounds', ['dev', '--port', '65536'], /whole number from 0 to 65535/],
    ['no question', ['ask'], /there is no question/],
    ['an empty question', ['ask', ' ', ''], /there is no question/],
    ['an address that is none', ['ask', '--url', 'localhost:1', 'x'], /is no http:\/\/ or https:\/\/ address/],
    ['a missing file', ['ask', '-f', 'FOLDER/none', 'x'], /there is no file .*none/],
    ['a path through a file', ['ask', '-f', 'FOLDER/notes.md/x', 'x'], /there is no file/],
    ['a folder', ['ask', '-f', 'FOLDER', 'x'], /is a folder/],
    ['a binary file', ['ask', '-f', 'FOLDER/binary', 'x'], /binary is not UTF-8 text/],
    ['another encoding', ['ask', '-f', 'FOLDER/latin1.txt', 'x'], /latin1.txt is not UTF-8 text/],
    ['a large file', ['ask', '-f', 'FOLDER/large.txt', 'x'], /too large.*4 MiB/],
    ['an empty state folder', ['dev', '--state', ''], /--state must not be empty/],
    ['an empty address', ['ask', '--url', '', 'x'], /--url must not be empty/],
    ['an empty model', ['models', 'check', ''], /<model> must not be empty/],
    ['a folder for a model', ['dev', '--model', 'FOLDER', '--state', 'FOLDER/s'], /model .* is no file/],
    ['no model file', ['dev', '--model', 'FOLDER/none.gguf', '--state', 'FOLDER/s'], /model file .* cannot be read/],
  ];
  it.each(cases)('%s', async (_, args, message) => {
    const run = await runCli(args.map((arg) => arg.replace('FOLDER', folder)));
    expect(run.stderr).toMatch(message);
    expect(run).toMatchObject({ exitCode: 2, stdout: '' });
    expect(run.stderr).not.toMatch(/\n\s+at /);
  });
});

describe('what cannot be used', () => {
  it('no question, with --json: one object with the code', async () => {
    const run = await runCli(['ask', '--json', ' ']);
    expect(run.exitCode).toBe(2);
    expect(JSON.parse(run.stdout)).toEqual({
      error: { code: 'INVALID_REQUEST', message: 'there is no question' },
    });
  });

  it.each([
    [['--json', '--bogus'], 'unknown option'],
    [['ask', '--json', '--bogus', 'x'], "unknown option '--bogus'"],
    [['dev', '--json', '--port', 'x'], 'whole number'],
    [['--json'], 'option'],
  ])('wrong usage %j: one object with the code', async (args, message) => {
    const run = await runCli(args);
    expect(run.exitCode).toBe(2);
    expect(JSON.parse(run.stdout)).toEqual({
      error: { code: 'INVALID_REQUEST', message: expect.stringContaining(message) as string },
    });
  });

  it('a --json that belongs to the question prints nothing', async () => {
    expect(await runCli(['ask', '--bogus', '--', '--json'])).toMatchObject({ exitCode: 2, stdout: '' });
  });

  it.runIf(process.platform === 'linux')('a state folder where none can be made', async () => {
    const run = await runCli(['dev', '--state', '/proc/muser']);
    expect(run).toMatchObject({ exitCode: 1, stdout: '' });
    expect(run.stderr).toMatch(/the folder \/proc\/muser cannot be made.*\(CONFIG_INVALID\)/);
  });

  it('a folder of other things as state folder; it stays open to others', async () => {
    const foreign = join(folder, 'foreign');
    await mkdir(foreign);
    await writeFile(join(foreign, 'notes.md'), 'x');
    await chmod(foreign, 0o755);
    const run = await runCli(['dev', '--state', foreign]);
    expect(run).toMatchObject({ exitCode: 1, stdout: '' });
    expect(run.stderr).toMatch(/open to other users and holds other files \(CONFIG_INVALID\)\n.*--state/);
    expect((await stat(foreign)).mode & 0o777).toBe(0o755);
  });

  it.runIf(process.platform === 'linux')('a pipe that nobody writes to: the deadline ends the wait', async () => {
    const pipe = join(folder, 'pipe');
    execFileSync('mkfifo', [pipe]);
    const run = await runCli(['ask', '--timeout', '1', '-f', pipe, 'x']);
    expect(run).toMatchObject({ exitCode: 1, stdout: '' });
    expect(run.stderr).toContain('DEADLINE_EXCEEDED');
  });
});

describe('unreachable', () => {
  it('a decoder: code 3 and what to do', async () => {
    const run = await runCli(['ask', '--url', 'http://127.0.0.1:1', 'x']);
    expect(run).toMatchObject({ exitCode: 3, stdout: '' });
    expect(run.stderr).toMatch(/no decoder at http:\/\/127.0.0.1:1.*\n.*muser dev/);
  });

  it('a state folder with which nothing runs, although something listens on the usual port', async () => {
    const run = await runCli(['ask', '--json', '--state', join(folder, 'idle'), 'x']);
    expect(run.exitCode).toBe(3);
    expect(JSON.parse(run.stdout)).toEqual({
      error: {
        code: 'PEER_UNREACHABLE',
        message: `nothing runs with the state folder ${join(folder, 'idle')}`,
      },
    });
    expect(run.stderr).toContain('muser dev --state');
  });

  it('a decoder, with --json: one object with the code', async () => {
    const run = await runCli(['ask', '--json', '--url', 'http://127.0.0.1:1', 'x']);
    expect(run.exitCode).toBe(3);
    expect(JSON.parse(run.stdout)).toMatchObject({ error: { code: 'PEER_UNREACHABLE' } });
  });

  it('a coordinator: code 3 and what to do', async () => {
    const run = await runCli(['node', 'list', '--state', join(folder, 'empty')]);
    expect(run).toMatchObject({ exitCode: 3, stdout: '' });
    expect(run.stderr).toContain('muser dev');
  });

  it('says that a file of addresses is damaged', async () => {
    await writeFile(join(folder, 'endpoints.json'), '{"decoder":');
    const run = await runCli(['ask', '--state', folder, 'x']);
    expect(run.exitCode).toBe(1);
    expect(run.stderr).toMatch(/endpoints.json is damaged/);
  });
});
