import { readFileSync } from 'node:fs';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { Dev, eventually, heard, isAlive, muser, startMuser, type MuserRun } from './support/muser.js';

const HANDBOOK = fileURLToPath(new URL('../../models/muse-nano/handbook.md', import.meta.url));

/** For a busy machine. */
const LIMIT_MS = 240_000;
const QUESTION = 'Where is the spare key?';
const ANSWER = 'kitchen';
/** The handbook's first pages with the answer: about 900 tokens, and 1,900 whose remote prefill takes many seconds. */
const SHORT_CHARACTERS = 3_000;
const LONG_CHARACTERS = 6_000;
const TOKENS_PER_SECOND = '150';

interface Asked {
  answer: string;
  prefill: string;
  fallback: { code: string; message: string } | null;
}

interface NodeView {
  name: string;
  role: string;
  state: string;
  modelLoaded: boolean | null;
  load: { activeTransfers: number } | null;
}

let folder: string;
let short: string;
let long: string;
let dev: Dev;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'muser-pause-'));
  const handbook = await readFile(HANDBOOK, 'utf8');
  [short, long] = [join(folder, 'short.md'), join(folder, 'long.md')];
  await writeFile(short, handbook.slice(0, SHORT_CHARACTERS));
  await writeFile(long, handbook.slice(0, LONG_CHARACTERS));
  dev = await Dev.start(join(folder, 'state'), '--prefill-tokens-per-second', TOKENS_PER_SECOND);
}, LIMIT_MS);
afterAll(async () => {
  await dev.destroy();
  await rm(folder, { recursive: true, force: true });
});

const node = (word: string, ...args: string[]): Promise<MuserRun> =>
  muser(['node', word, '--state', dev.state, ...args]);

async function producer(): Promise<NodeView> {
  const { nodes } = JSON.parse((await node('list', '--json')).stdout) as { nodes: NodeView[] };
  return nodes.find(({ role }) => role === 'producer') as NodeView;
}

async function ask(document = short): Promise<Asked> {
  const flags = ['--json', '--remote-prefill', '--state', dev.state, '-f', document];
  const run = await muser(['ask', ...flags, QUESTION]);
  expect(run, run.stderr).toMatchObject({ exitCode: 0 });
  return JSON.parse(run.stdout) as Asked;
}

/** A question whose transfer has begun and goes on for a while. */
async function askForLong(): Promise<{ answer: Promise<Asked> }> {
  const answer = ask(long);
  await eventually('the transfer begins', async () => (await producer()).load?.activeTransfers === 1);
  return { answer };
}

/** Whether the process has the model's file in its memory; null where that cannot be seen. */
function holdsWeights(pid: number): boolean | null {
  return process.platform === 'linux' ? readFileSync(`/proc/${pid}/maps`, 'utf8').includes('.gguf') : null;
}

describe('muser node pause', { timeout: LIMIT_MS }, () => {
  // Each test begins with a producer that runs.
  afterEach(async () => {
    expect(await node('resume', 'producer')).toMatchObject({ exitCode: 0 });
  });

  it('unloads the model, and resume loads it again; both may be said twice', async () => {
    const { producer: pid } = dev.ready.pids;
    expect(holdsWeights(pid)).not.toBe(false);
    for (let time = 0; time < 2; time += 1) {
      expect(await node('pause', 'producer')).toEqual({
        exitCode: 0,
        stdout: 'producer is paused: its model is unloaded',
        stderr: 'waiting until producer is paused',
      });
      expect(holdsWeights(pid)).not.toBe(true);
      expect(await producer()).toMatchObject({ state: 'paused', modelLoaded: false });
    }
    expect((await node('list')).stdout).toMatch(/producer +producer +paused +llama/);
    for (let time = 0; time < 2; time += 1) {
      const { exitCode, stdout } = await node('resume', '--json', 'producer');
      expect(exitCode).toBe(0);
      expect(JSON.parse(stdout)).toMatchObject({ node: { name: 'producer', state: 'healthy', modelLoaded: true } });
    }
    expect(await ask()).toMatchObject({ prefill: 'remote', fallback: null });
  });

  it('while it is paused questions are answered locally, with the reason', async () => {
    await node('pause', 'producer');
    const { answer, prefill, fallback } = await ask();
    expect(answer).toContain(ANSWER);
    expect({ prefill, fallback }).toMatchObject({ prefill: 'local', fallback: { code: 'NO_PRODUCER' } });
    expect(fallback?.message).toContain('producer is paused');
  });

  it('lets what runs finish; a time-out and Ctrl-C end the wait, not the order', async () => {
    const { answer } = await askForLong();
    const late = await node('pause', '--timeout', '1', 'producer');
    expect(late).toMatchObject({ exitCode: 1, stdout: '' });
    expect(late.stderr).toMatch(/1 transfers still run \(DEADLINE_EXCEEDED\)\n.*--now n[a-z2-7]{26}`/);
    expect(await producer()).toMatchObject({ state: 'draining', modelLoaded: true });
    const waiting = startMuser(['node', 'pause', '--state', dev.state, 'producer'], { timeout: LIMIT_MS });
    await heard(waiting.stderr, /waiting/);
    waiting.kill('SIGINT');
    const { exitCode, stderr } = await waiting;
    expect(exitCode).toBe(130);
    expect(String(stderr)).toContain('the order may stand');
    expect(await answer).toMatchObject({ prefill: 'remote', fallback: null });
    expect((await answer).answer).toContain(ANSWER);
    await eventually('it is paused', async () => (await producer()).state === 'paused');
  });

  it('with --now cancels what runs, which costs time, not the answer', async () => {
    const { answer } = await askForLong();
    expect(await node('pause', '--now', 'producer')).toMatchObject({ exitCode: 0 });
    const { prefill, fallback, ...asked } = await answer;
    expect(asked.answer).toContain(ANSWER);
    expect(fallback).toMatchObject({ code: 'PRODUCER_PAUSED' });
    expect(['local', 'resumed']).toContain(prefill);
  });

  it('and resume at once leave it as the last one that came says', async () => {
    const runs = await Promise.all([node('pause', 'producer'), node('resume', 'producer'), node('pause', 'producer')]);
    for (const { exitCode, stderr } of runs) if (exitCode !== 0) expect(stderr).toContain('CANCELLED');
    expect(runs.some(({ exitCode }) => exitCode === 0)).toBe(true);
    expect(['healthy', 'paused']).toContain((await producer()).state);
    await node('resume', 'producer');
    expect(await ask()).toMatchObject({ prefill: 'remote', fallback: null });
  });

  it('outlives the sudden death of everything; the model is not loaded before it is resumed', async () => {
    await node('pause', 'producer');
    for (const pid of dev.pids) process.kill(pid, 'SIGKILL');
    await dev.ended();
    dev = await Dev.start(dev.state, '--prefill-tokens-per-second', TOKENS_PER_SECOND);
    expect(dev.pids.every(isAlive)).toBe(true);
    expect(dev.log).toContain('the producer is paused');
    await eventually('the coordinator hears it', async () => (await producer()).state === 'paused');
    expect(holdsWeights(dev.ready.pids.producer)).not.toBe(true);
    expect(await ask()).toMatchObject({ prefill: 'local', fallback: { code: 'NO_PRODUCER' } });
    expect(await node('resume', 'producer')).toMatchObject({ exitCode: 0 });
    expect(await ask()).toMatchObject({ prefill: 'remote', fallback: null });
  });
});

describe('what cannot be paused', { timeout: LIMIT_MS }, () => {
  it.each([
    ['nobody', 1, /there is no node "nobody" \(NOT_FOUND\)/],
    ['decoder', 1, /"decoder" is a decoder; only producers can be paused \(INVALID_REQUEST\)/],
  ])('%s', async (name, exitCode, message) => {
    for (const word of ['pause', 'resume']) {
      const run = await node(word, name);
      expect(run).toMatchObject({ exitCode, stdout: '' });
      expect(run.stderr).toMatch(message);
      expect(run.stderr).toContain('muser node list');
      const { stdout } = await node(word, '--json', name);
      expect(JSON.parse(stdout)).toEqual({
        error: { code: expect.any(String) as string, message: expect.stringContaining(name) as string },
      });
    }
  });

  it('a producer that is dead', async () => {
    process.kill(dev.ready.pids.producer, 'SIGKILL');
    await dev.said(/the producer ended by SIGKILL/);
    const run = await node('pause', 'producer');
    expect(run).toMatchObject({ exitCode: 1, stdout: '' });
    expect(run.stderr).toMatch(/the producer is not paused: .*\(PEER_UNREACHABLE\)/);
  });

  it('anything without a coordinator', async () => {
    process.kill(dev.ready.pids.coordinator, 'SIGKILL');
    await dev.said(/the coordinator ended by SIGKILL/);
    expect(await node('pause', 'producer')).toMatchObject({ exitCode: 3, stdout: '' });
    const elsewhere = await muser(['node', 'resume', '--state', join(folder, 'nothing'), 'producer']);
    expect(elsewhere).toMatchObject({ exitCode: 3, stdout: '' });
  });
});
