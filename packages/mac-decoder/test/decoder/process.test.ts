import { spawn, type ChildProcess, type ChildProcessWithoutNullStreams } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { TestAuthority, type TestIdentityRequest } from '@muser/testing';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { ask, post } from '../support/client.js';
import { MODEL_PATH } from '../support/rig.js';

const MAIN = fileURLToPath(new URL('../../dist/main.js', import.meta.url));

let stateDir: string;
let children: ChildProcess[];
beforeEach(async () => {
  stateDir = await mkdtemp(join(tmpdir(), 'muser-decoder-process-'));
  children = [];
});
afterEach(async () => {
  for (const child of children) {
    if (child.exitCode === null && child.signalCode === null) {
      child.kill('SIGKILL');
      await once(child, 'exit');
    }
  }
  await rm(stateDir, { recursive: true, force: true });
});

function start(...args: string[]): ChildProcessWithoutNullStreams {
  const child = spawn(process.execPath, [MAIN, ...args], { stdio: ['pipe', 'pipe', 'pipe'] });
  child.stderr.resume();
  children.push(child);
  return child;
}

async function run(config: object): Promise<{ child: ReturnType<typeof start>; ready: Record<string, unknown> }> {
  const file = join(stateDir, 'config.json');
  await writeFile(
    file,
    JSON.stringify({ stateDir, model: MODEL_PATH, contextTokens: 4_096, threads: 1, logLevel: 'error', ...config }),
  );
  const child = start('run', '--config', file);
  for await (const line of createInterface({ input: child.stdout })) {
    return { child, ready: JSON.parse(line) as Record<string, unknown> };
  }
  throw new Error('ended without a ready line');
}

const exitCode = async (child: ChildProcess): Promise<number | null> => {
  if (child.exitCode === null) await once(child, 'exit');
  return child.exitCode;
};

test('makes its keys, takes its certificate', async () => {
  const authority = await TestAuthority.create();
  const dir = join(stateDir, 'identity');
  const create = start('identity', 'create', '--dir', dir);
  const request = JSON.parse(await text(create.stdout)) as TestIdentityRequest;
  expect(request.role).toBe('decoder');
  const install = start('identity', 'install', '--dir', dir);
  install.stdin.end(JSON.stringify(await authority.issue(request)));
  expect(await exitCode(install)).toBe(0);
});

test.each(['', 'no JSON, but -----BEGIN', '[]', JSON.stringify({ nodeId: 'n' }), `"${'x'.repeat(100_000)}"`])(
  'takes no bundle that is none, and does not quote it: %#',
  async (bundle) => {
    const dir = join(stateDir, 'identity');
    await exitCode(start('identity', 'create', '--dir', dir));
    const install = start('identity', 'install', '--dir', dir);
    const complaint = text(install.stderr);
    install.stdin.on('error', () => undefined).end(bundle);
    expect(await exitCode(install)).toBe(1);
    expect(await complaint).toMatch(/^mac-decoder: [A-Z_]+: /);
    expect(await complaint).not.toMatch(/BEGIN|xxx/);
  },
);

// fault: health-follows-peer
test('answers without a coordinator, and ends on SIGTERM with code 0', async () => {
  const { child, ready } = await run({});
  expect(ready).toMatchObject({ ready: true, pid: child.pid, nodeId: null });
  const url = String(ready['http']);
  const answer = await ask(url, 'Who are you?', { prefill: 'remote' });
  expect(answer.muser).toMatchObject({ prefill: 'local', fallback: { code: 'NO_PRODUCER' } });
  child.kill('SIGTERM');
  expect(await exitCode(child)).toBe(0);
});

test('SIGTERM lets a running answer end', async () => {
  const { child, ready } = await run({});
  const response = await post(String(ready['http']), {
    messages: [{ role: 'user', content: 'What can you do?' }],
    stream: true,
    temperature: 0,
  });
  child.kill('SIGTERM');
  const body = await response.text();
  expect(body).toContain('"finish_reason":"stop"');
  expect(body).toContain('[DONE]');
  expect(await exitCode(child)).toBe(0);
});

test('an answer that takes longer than draining allows is ended with a reason', async () => {
  const { child, ready } = await run({ drainMs: 1 });
  const response = await post(String(ready['http']), {
    messages: [{ role: 'user', content: 'Hello' }],
    stream: true,
    max_tokens: 3_500,
    logit_bias: { '5': -100, '1': -100 },
  });
  child.kill('SIGTERM');
  const body = await response.text();
  expect(body).toContain('"code":"UNAVAILABLE"');
  expect(body).not.toContain('[DONE]');
  expect(await exitCode(child)).toBe(0);
});

test('ends with its parent', async () => {
  const { child } = await run({ exitWithParent: true });
  child.stdin.end();
  expect(await exitCode(child)).toBe(0);
});

test.each([
  ['an unknown key', { unknown: 1 }, 'CONFIG_INVALID', 2],
  ['no such model', { model: '/nowhere/model.gguf' }, 'MODEL_LOAD_FAILED', 1],
  ['a file that is no model', { model: MAIN }, 'MODEL_LOAD_FAILED', 1],
  ['an address of the network', { host: '0.0.0.0' }, 'CONFIG_INVALID', 2],
  ['a coordinator but no identity', { coordinator: '127.0.0.1:1' }, 'NOT_FOUND', 1],
])('%s: says why it does not start', async (_name, config, code, exit) => {
  const file = join(stateDir, 'config.json');
  await writeFile(
    file,
    JSON.stringify({ stateDir, model: MODEL_PATH, contextTokens: 4_096, threads: 1, logLevel: 'silent', ...config }),
  );
  const child = start('run', '--config', file);
  const [output] = await Promise.all([text(child.stdout), exitCode(child)]);
  if (exit === 1 || output !== '') expect(output).toContain(code);
  expect(await exitCode(child)).toBe(exit);
});
