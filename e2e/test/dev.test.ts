import { existsSync } from 'node:fs';
import { mkdtemp, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { Dev, eventually, heard, isAlive, muser, startMuser } from './support/muser.js';

const HANDBOOK = fileURLToPath(new URL('../../models/muse-nano/handbook.md', import.meta.url));

/** For a busy machine. */
const LIMIT_MS = 240_000;

const QUESTION = 'Where is the backup tape?';

/** Facts of the handbook's three thirds, with what the answer must hold. */
const FACTS = [
  ['What is the job of Anna Kovacs?', 'electrician'],
  ['Who is ticket 4711 assigned to?', 'Olga Weber'],
  ['Which port does server delfin listen on?', '7342'],
] as const;

const SHORT_QUESTION = 'Where is the spare key?';
/** The handbook's first pages, about 800 tokens with the answer to SHORT_QUESTION. */
const SHORT_CHARACTERS = 3_000;

interface Asked {
  answer: string;
  prefill: string;
  fallback: { code: string; message: string } | null;
  promptTokens: number;
  cachedTokens: number;
  ttftMs: number;
  kvBytes: number;
  timeline: Record<string, number>;
}

let folder: string;
let short: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'muser-dev-'));
  short = join(folder, 'short.md');
  await writeFile(short, (await readFile(HANDBOOK, 'utf8')).slice(0, SHORT_CHARACTERS));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

async function ask(dev: Dev, question: string, ...flags: string[]): Promise<Asked> {
  const run = await muser(['ask', '--json', '--state', dev.state, ...flags, question]);
  expect(run, run.stderr).toMatchObject({ exitCode: 0 });
  return JSON.parse(run.stdout) as Asked;
}

interface NodeView {
  nodeId: string;
  name: string;
  role: string;
  state: string;
}

async function nodes(dev: Dev): Promise<NodeView[]> {
  const { stdout } = await muser(['node', 'list', '--json', '--state', dev.state]);
  return (JSON.parse(stdout) as { nodes: NodeView[] }).nodes;
}

describe('a running system', { timeout: LIMIT_MS }, () => {
  let dev: Dev;
  beforeAll(async () => {
    dev = await Dev.start(join(folder, 'running'));
  });
  afterAll(() => dev.destroy());

  it('says where everything is', async () => {
    expect(dev.ready).toEqual({
      ready: true,
      decoder: expect.stringMatching(/^http:\/\/127\.0\.0\.1:\d+$/) as string,
      coordinator: expect.stringMatching(/^http:\/\/127\.0\.0\.1:\d+$/) as string,
      pids: {
        coordinator: expect.any(Number) as number,
        producer: expect.any(Number) as number,
        decoder: expect.any(Number) as number,
      },
    });
    expect(new Set(dev.pids).size).toBe(3);
    expect(dev.pids.every(isAlive)).toBe(true);
  });

  it('keeps its folders closed to other users', async () => {
    for (const name of ['', ...(await readdir(dev.state, { recursive: true }))]) {
      const { mode } = await stat(join(dev.state, name));
      expect((mode & 0o077).toString(8), name).toBe('0');
    }
  });

  it('answers the same by local and by remote prefill', async () => {
    const local = await ask(dev, QUESTION, '--local', '-f', HANDBOOK);
    expect(local).toMatchObject({ prefill: 'local', fallback: null, kvBytes: 0 });
    expect(local.answer).toContain('attic');
    expect(local.promptTokens).toBeGreaterThan(7_900);
    expect(local.promptTokens).toBeLessThan(8_200);
    const remote = await ask(dev, QUESTION, '--remote-prefill', '-f', HANDBOOK);
    expect(remote).toMatchObject({ prefill: 'remote', fallback: null, answer: local.answer });
    expect(remote.kvBytes).toBeGreaterThan(1_000_000);
    expect(remote.ttftMs).toBeGreaterThan(0);
    expect(Object.keys(remote.timeline)).toEqual(expect.arrayContaining(['accepted', 'sealed', 'firstToken', 'done']));
  });

  it.each(FACTS)('%s', async (question, fact) => {
    const { answer, prefill } = await ask(dev, question, '--remote-prefill', '-f', HANDBOOK);
    expect(prefill).toBe('remote');
    expect(answer).toContain(fact);
  });

  it('chooses by itself, and takes a document from a pipe', async () => {
    const run = await muser(['ask', '--state', dev.state, 'Which port does server bramok listen on?'], {
      input: 'Server bramok listens on port 48211.\n',
      stdin: 'pipe',
    });
    expect(run).toMatchObject({ exitCode: 0, stdout: 'Server bramok listens on port 48211.' });
  });

  it('refuses a prompt that does not fit, with the numbers', async () => {
    const run = await muser(['ask', '--state', dev.state, 'x'], { input: 'word '.repeat(100_000), stdin: 'pipe' });
    expect(run.exitCode).toBe(1);
    expect(run.stderr).toMatch(/error: .*\d.* \([A-Z_]+\)/);
  });

  it('shows its nodes', async () => {
    expect(await nodes(dev)).toEqual(
      expect.arrayContaining([
        expect.objectContaining({ role: 'producer', state: 'healthy' }),
        expect.objectContaining({ role: 'decoder' }),
      ]),
    );
    const table = await muser(['node', 'list', '--state', dev.state]);
    expect(table.stdout).toMatch(/producer +producer +healthy/);
  });

  it('is in order, says the doctor', async () => {
    const { exitCode, stdout } = await muser(['doctor', '--json', '--state', dev.state]);
    const { ok, checks } = JSON.parse(stdout) as { ok: boolean; checks: { name: string; status: string }[] };
    expect({ exitCode, ok }).toEqual({ exitCode: 0, ok: true });
    expect(checks.map(({ name }) => name)).toEqual(
      expect.arrayContaining([
        'node',
        'engine',
        'model',
        'state',
        'producer certificate',
        'disk',
        'decoder',
        'coordinator',
      ]),
    );
  });

  it('refuses a second one on the same folder, with the process number', async () => {
    const run = await muser(['dev', '--state', dev.state, '--port', '0']);
    expect(run).toMatchObject({ exitCode: 1, stdout: '' });
    expect(run.stderr).toMatch(new RegExp(`${dev.pid}.*STATE_LOCKED`));
    expect(dev.pids.every(isAlive)).toBe(true);
  });

  it('refuses a port that somebody else has', async () => {
    const port = new URL(dev.ready.decoder).port;
    const run = await muser(['dev', '--state', join(folder, 'other'), '--port', port]);
    expect(run.exitCode).toBe(2);
    expect(run.stderr).toContain(`port ${port} is in use`);
  });
});

describe('when a part dies', { timeout: LIMIT_MS }, () => {
  let dev: Dev;
  afterEach(() => dev.destroy());

  // fault: health-follows-peer
  it('answers go on without the producer, and without the coordinator', async () => {
    dev = await Dev.start(join(folder, 'dying'));
    process.kill(dev.ready.pids.producer, 'SIGKILL');
    await dev.said(/the producer ended by SIGKILL.*local prefill/);
    const withoutProducer = await ask(dev, SHORT_QUESTION, '--remote-prefill', '-f', short);
    expect(withoutProducer).toMatchObject({ prefill: 'local', fallback: { code: expect.any(String) as string } });
    expect(withoutProducer.answer).toContain('kitchen');
    await eventually('the coordinator notices', async () =>
      (await nodes(dev)).some(({ role, state }) => role === 'producer' && state === 'unreachable'),
    );
    process.kill(dev.ready.pids.coordinator, 'SIGKILL');
    await dev.said(/the coordinator ended by SIGKILL/);
    const alone = await ask(dev, SHORT_QUESTION, '-f', short);
    expect(alone.answer).toContain('kitchen');
    dev.kill('SIGINT');
    expect(await dev.ended()).toBe(0);
    expect(dev.pids.some(isAlive)).toBe(false);
  });

  it('a producer that dies during a transfer costs time, not the answer', async () => {
    // Two chunks, the second of which takes longer than it takes to kill.
    dev = await Dev.start(join(folder, 'cut'), '--prefill-tokens-per-second', '200');
    const asked = startMuser(['ask', '--json', '--state', dev.state, '--remote-prefill', '-f', short, SHORT_QUESTION]);
    await heard(asked.stderr, /receiving the KV cache/);
    process.kill(dev.ready.pids.producer, 'SIGKILL');
    const { exitCode, stdout } = await asked;
    expect(exitCode).toBe(0);
    const { answer, fallback, prefill } = JSON.parse(String(stdout)) as Asked;
    expect(answer).toContain('kitchen');
    expect(fallback).toMatchObject({ code: 'PEER_UNREACHABLE' });
    expect(['local', 'resumed']).toContain(prefill);
  });

  it('a producer that dies after a transfer is not missed', async () => {
    dev = await Dev.start(join(folder, 'after'));
    const asked = startMuser(['ask', '--stats', '--state', dev.state, '--remote-prefill', '-f', short, SHORT_QUESTION]);
    await heard(asked.stdout, /./);
    process.kill(dev.ready.pids.producer, 'SIGKILL');
    const { exitCode, stdout, stderr } = await asked;
    expect(exitCode).toBe(0);
    expect(stdout).toContain('kitchen');
    expect(stderr).toMatch(/way +remote/);
  });

  it('the end of the decoder ends everything, with code 1', async () => {
    dev = await Dev.start(join(folder, 'decoder'));
    process.kill(dev.ready.pids.decoder, 'SIGKILL');
    expect(await dev.ended()).toBe(1);
    await dev.said(/the decoder ended by SIGKILL/);
    expect(dev.pids.some(isAlive)).toBe(false);
  });
});

describe('the end', { timeout: LIMIT_MS }, () => {
  let dev: Dev;
  afterEach(() => dev.destroy());

  it('Ctrl-C leaves no process behind, and a second run has the same nodes', async () => {
    const state = join(folder, 'again');
    dev = await Dev.start(state);
    const before = await nodes(dev);
    dev.kill('SIGINT');
    expect(await dev.ended()).toBe(0);
    expect(dev.log).not.toContain('did not stop in time');
    expect(dev.pids.some(isAlive)).toBe(false);
    expect(existsSync(join(state, 'endpoints.json'))).toBe(false);
    expect((await muser(['ask', '--state', state, '--url', dev.ready.decoder, 'x'])).exitCode).toBe(3);

    dev = await Dev.start(state, '--prefill-tokens-per-second', '4000');
    expect((await nodes(dev)).map(({ nodeId }) => nodeId).sort()).toEqual(before.map(({ nodeId }) => nodeId).sort());
    expect(await ask(dev, SHORT_QUESTION, '--remote-prefill', '-f', short)).toMatchObject({ prefill: 'remote' });
  });

  it('the processes end when muser dev is killed, and the next one starts', async () => {
    const state = join(folder, 'killed');
    dev = await Dev.start(state);
    const first = dev;
    dev.kill('SIGKILL');
    dev = await Dev.start(state);
    expect(first.pids.some(isAlive)).toBe(false);
    expect(await ask(dev, SHORT_QUESTION, '-f', short)).toMatchObject({
      answer: expect.stringContaining('kitchen') as string,
    });
  });

  it('a second Ctrl-C does not wait for a process that hangs', async () => {
    dev = await Dev.start(join(folder, 'hanging'));
    process.kill(dev.ready.pids.decoder, 'SIGSTOP');
    dev.kill('SIGINT');
    await dev.said(/stopping the decoder/);
    dev.kill('SIGINT');
    expect(await dev.ended()).toBe(130);
    await eventually('all are gone', () => !dev.pids.some(isAlive));
  });

  it('no prompt and no answer is in a log', async () => {
    dev = await Dev.start(join(folder, 'logs'));
    await ask(dev, 'Which port does server zanzimok listen on?', '--remote-prefill', '-f', short);
    dev.kill('SIGTERM');
    expect(await dev.ended()).toBe(0);
    for (const name of await readdir(join(dev.state, 'logs'))) {
      const log = await readFile(join(dev.state, 'logs', name), 'utf8');
      expect(log, name).not.toMatch(/zanzimok|Fernhill|kitchen|spare/);
      expect(log, name).toContain('closes on SIGTERM');
    }
  });
});

describe('a system that starts', { timeout: LIMIT_MS }, () => {
  it('ends at a second Ctrl-C, with a process that hangs', async () => {
    const state = join(folder, 'hanging-early');
    const child = startMuser(['dev', '--state', state, '--port', '0'], { buffer: false });
    await heard(child.stderr, /starting the producer/);
    const lock = await readFile(join(state, 'coordinator', 'lock'), 'utf8');
    const { pid } = JSON.parse(lock) as { pid: number };
    process.kill(pid, 'SIGSTOP');
    try {
      const stopping = heard(child.stderr, /stopping the coordinator/);
      child.kill('SIGINT');
      await stopping;
      child.kill('SIGINT');
      expect((await child).exitCode).toBe(130);
      await eventually('the coordinator is gone', () => !isAlive(pid));
    } finally {
      if (isAlive(pid)) process.kill(pid, 'SIGKILL');
    }
  });
});
