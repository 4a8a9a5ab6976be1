// Whoever gives a request up, its prefill on another machine ends with it. Real processes; the producer would compute for
// minutes until its first rows, so whatever is reached here is reached before.
import { mkdir, mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { chat } from './support/chat.js';
import { inCheckout } from './support/checkout.js';
import { eventually, startMuser } from './support/muser.js';
import {
  announce,
  enrollNode,
  joinDecoder,
  Node,
  startCoordinator,
  type CoordinatorAccess,
  type DecoderReady,
  type ProducerReady,
} from './support/nodes.js';

/** For a busy machine. */
const LIMIT_MS = 240_000;
const MODEL = inCheckout('models/muse-nano/muse-nano-q8_0.gguf');
const TEXT = 'The tape lies in the cellar. '.repeat(200);
/** One step of 512 tokens takes longer than anything here waits. */
const TOKENS_PER_SECOND = 1;

interface LogLine {
  readonly msg: string;
  readonly code?: string;
}

let folder: string;
let coordinator: { access: CoordinatorAccess; stop: () => Promise<void> };
let producer: Node<ProducerReady>;
let decoder: Node<DecoderReady>;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'muser-cancel-'));
  coordinator = await startCoordinator(join(folder, 'coordinator'));
  const state = join(folder, 'producer');
  await mkdir(state, { mode: 0o700 });
  await enrollNode('gb10-producer', state, 'spark', coordinator.access);
  const settings = { model: MODEL, threads: 1, pacing: TOKENS_PER_SECOND, drainMs: 1_000 };
  producer = await Node.start<ProducerReady>('gb10-producer', state, settings);
  await announce(coordinator.access, producer.ready.nodeId, [producer.ready.address]);
  await mkdir(join(folder, 'decoder'), { mode: 0o700 });
  decoder = await joinDecoder(coordinator.access, join(folder, 'decoder'), MODEL);
}, LIMIT_MS);
afterAll(async () => {
  await Promise.all([decoder?.stop(), producer?.stop()]);
  await coordinator?.stop();
  await rm(folder, { recursive: true, force: true });
}, LIMIT_MS);

async function logOf(name: 'producer' | 'decoder'): Promise<LogLine[]> {
  const text = await readFile(join(folder, name, 'log'), 'utf8');
  const whole = text.slice(0, text.lastIndexOf('\n') + 1).trim();
  return whole === '' ? [] : whole.split('\n').map((line) => JSON.parse(line) as LogLine);
}

async function activeTransfers(): Promise<number> {
  const { http, token } = coordinator.access;
  const response = await fetch(new URL('/api/nodes', http), { headers: { authorization: `Bearer ${token}` } });
  const { nodes } = (await response.json()) as { nodes: { role: string; load: { activeTransfers: number } | null }[] };
  return nodes.find(({ role }) => role === 'producer')?.load?.activeTransfers ?? 0;
}

/** Runs what gives a request up once its transfer has begun; the codes that both sides' logs have for it. */
async function codesOf(giveUp: () => Promise<unknown>): Promise<{ decoder: string; producer: string }> {
  const before = { decoder: await endings('decoder'), producer: await endings('producer') };
  await giveUp();
  const codes = { decoder: '', producer: '' };
  for (const name of ['decoder', 'producer'] as const) {
    await eventually(`the ${name} tells that it is cancelled`, async () => {
      const [ending, ...more] = (await endings(name)).slice(before[name].length);
      expect(more).toEqual([]);
      codes[name] = ending?.code ?? '';
      return ending !== undefined;
    });
  }
  await eventually('the producer is free', async () => (await activeTransfers()) === 0);
  return codes;
}

/** How requests and transfers ended that did not reach their end. A transfer is logged when all that it held is free. */
async function endings(name: 'producer' | 'decoder'): Promise<LogLine[]> {
  const lines = await logOf(name);
  return lines.filter(({ msg }) => msg === 'not answered' || /^transfer (cancelled|failed|sealed)$/.test(msg));
}

const begun = (): Promise<void> => eventually('the transfer begins', async () => (await activeTransfers()) === 1);

const askIt = (...flags: string[]) =>
  startMuser(['ask', '--remote-prefill', '--url', decoder.ready.http, ...flags, `${TEXT}Where is the tape?`], {
    timeout: LIMIT_MS,
  });

// promise: Whoever gives up (a client that leaves, Ctrl-C, a deadline, a decoder that is stopped), the producer stops at once.
it('a client that leaves', { timeout: LIMIT_MS }, async () => {
  const codes = await codesOf(async () => {
    const leaving = new AbortController();
    const answer = chat(decoder.ready.http, TEXT, 'remote', { signal: leaving.signal });
    const ended = expect(answer).rejects.toThrow();
    await begun();
    leaving.abort();
    await ended;
  });
  expect(codes).toEqual({ decoder: 'CANCELLED', producer: 'CANCELLED' });
});

it('Ctrl-C of muser ask', { timeout: LIMIT_MS }, async () => {
  const codes = await codesOf(async () => {
    const asking = askIt();
    await begun();
    asking.kill('SIGINT');
    expect((await asking).exitCode).toBe(130);
  });
  expect(codes).toEqual({ decoder: 'CANCELLED', producer: 'CANCELLED' });
});

it('the deadline of muser ask', { timeout: LIMIT_MS }, async () => {
  const codes = await codesOf(async () => {
    const { exitCode, stderr } = await askIt('--timeout', '8');
    expect(exitCode).toBe(1);
    expect(stderr).toContain('DEADLINE_EXCEEDED');
  });
  expect(codes).toEqual({ decoder: 'CANCELLED', producer: 'CANCELLED' });
});

it('a decoder that is stopped, which tells its client so', { timeout: LIMIT_MS }, async () => {
  const codes = await codesOf(async () => {
    const answer = chat(decoder.ready.http, TEXT, 'remote');
    const told = expect(answer).rejects.toThrow(/"code":"UNAVAILABLE"/);
    await begun();
    await decoder.stop();
    await told;
  });
  expect(codes).toEqual({ decoder: 'UNAVAILABLE', producer: 'CANCELLED' });
});
