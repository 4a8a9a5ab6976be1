// Real vLLM on the CPU prefills, llama.cpp decodes: answers of two decoders, prefix cache, requests at once, cancels.
// vLLM is started once for all of it, and installed first when it is not there. Its faults are in vllm-faults.
import { execFileSync } from 'node:child_process';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { NeedleDocument } from '@muser/testing';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { chat, type Answer } from './support/chat.js';
import { eventually, muser } from './support/muser.js';
import { makeNeedles, messageOf } from './support/needles.js';
import {
  enrollNode,
  joinDecoder,
  startCoordinator,
  type CoordinatorAccess,
  type DecoderReady,
  type Node,
} from './support/nodes.js';
import { Producer } from './support/producer.js';

const inRepository = (path: string): string => fileURLToPath(new URL(`../../${path}`, import.meta.url));

/** Importing vLLM alone takes a minute on a busy machine with two cores. */
const START_MS = 900_000;
const QUESTIONS = 20;
const LEAST_EQUAL = 19;
const LEAST_RIGHT = 18;
const ATTEMPTS = 3;
/** Prefills of a `muser producer`, unless told otherwise. */
const AT_ONCE = 4;
/** Blocks of vLLM's cache on a CPU. */
const BLOCK_TOKENS = 128;

let folder: string;
let coordinator: { access: CoordinatorAccess; stop: () => Promise<void> };
let producer: Producer;
/** Its weights are muse-nano's in Q8_0. */
let nano: Node<DecoderReady>;
/** In Q4_K_M, padded so that K-quants apply; rows of K and V are those of muse-nano's own checkpoint. */
let wide: Node<DecoderReady>;
let needles: NeedleDocument[];

beforeAll(async () => {
  execFileSync(process.execPath, [inRepository('scripts/vllm-env.mjs'), '--quiet'], { stdio: 'inherit' });
  folder = await mkdtemp(join(tmpdir(), 'muser-vllm-e2e-'));
  needles = [
    ...(await makeNeedles({ count: QUESTIONS - 1, shortest: 300, longest: 6_000 })),
    ...(await makeNeedles({ count: 1, shortest: 16_000, longest: 16_000 })),
  ];
  coordinator = await startCoordinator(join(folder, 'coordinator'));
  const { access } = coordinator;
  await enrollNode('gb10-producer', join(folder, 'gb10', 'producer'), 'gb10', access);
  producer = await Producer.start(join(folder, 'gb10'), '--backend', 'vllm');
  await producer.announce(access);
  nano = await joinDecoder(access, join(folder, 'nano'), inRepository('models/muse-nano/muse-nano-q8_0.gguf'));
  wide = await joinDecoder(access, join(folder, 'wide'), inRepository('models/muse-nano/muse-nano-wide-q4_k_m.gguf'));
}, START_MS);

afterAll(async () => {
  await wide.stop();
  await nano.stop();
  expect(await producer.stop()).toBe(0);
  await coordinator.stop();
  await rm(folder, { recursive: true, force: true });
}, 120_000);

const needleAt = (index: number): NeedleDocument => needles[index] as NeedleDocument;

/** On a machine that is too busy, processes lose sight of one another for a moment; a fallback for that is asked again. */
async function askRemote(decoder: string, message: string): Promise<Answer> {
  for (let attempt = 1; ; attempt += 1) {
    const answer = await chat(decoder, message, 'remote');
    const { fallback } = answer.muser;
    if (fallback === null || attempt === ATTEMPTS) return answer;
    process.stderr.write(`fell back: ${fallback.code}, ${fallback.message}\n`);
  }
}

interface Sealed {
  decoder: string;
  computedTokens: number;
}

/** What the producer wrote down of the transfers that ended well, in order. */
async function sealed(): Promise<Sealed[]> {
  const log = await readFile(join(folder, 'gb10', 'logs', 'producer.log'), 'utf8');
  return log
    .split('\n')
    .filter((line) => line.includes('"transfer sealed"'))
    .map((line) => JSON.parse(line) as Sealed);
}

/** Asks, and tells how many of the prompt's tokens vLLM had to compute, and for whom. */
async function askCounted(decoder: string, message: string): Promise<Sealed & { tokens: number; answer: Answer }> {
  const before = (await sealed()).length;
  const answer = await askRemote(decoder, message);
  await eventually('the producer writes it down', async () => (await sealed()).length > before);
  const last = (await sealed()).at(-1) as Sealed;
  return { ...last, tokens: answer.muser.promptTokens, answer };
}

it('the start of `muser producer` is told stage by stage, with times', () => {
  const stages = ['vLLM is imported', 'the weights are loaded', 'the KV cache is allocated', 'the engine is warm'];
  const told = [...stages, 'vLLM is ready'].map((stage) => `\\[.+\\] ${stage} \\(\\d+\\.\\d s\\)`).join('\n');
  expect(producer.log).toMatch(new RegExp(told));
  // It was installed before, so nothing is installed again.
  expect(producer.log).not.toContain('installing');
});

describe('needle questions from 300 to 16,000 tokens', () => {
  interface Pair {
    needle: NeedleDocument;
    remote: Answer;
    local: Answer;
  }
  const asked = { nano: [] as Pair[], wide: [] as Pair[] };

  beforeAll(async () => {
    for (const needle of needles) {
      const message = messageOf(needle);
      // While vLLM prefills for one decoder the other one prefills by itself, so that both cores have work.
      const [nanoRemote, wideLocal] = await Promise.all([
        askRemote(nano.ready.http, message),
        chat(wide.ready.http, message, 'local'),
      ]);
      const [nanoLocal, wideRemote] = await Promise.all([
        chat(nano.ready.http, message, 'local'),
        askRemote(wide.ready.http, message),
      ]);
      asked.nano.push({ needle, remote: nanoRemote, local: nanoLocal });
      asked.wide.push({ needle, remote: wideRemote, local: wideLocal });
    }
  }, START_MS);

  it.each([
    ['Q8_0', 'nano'],
    ['Q4_K_M', 'wide'],
  ] as const)('are answered by weights in %s as after a local prefill', (type, decoder) => {
    const pairs = asked[decoder];
    expect(pairs).toHaveLength(QUESTIONS);
    for (const [index, { remote, local }] of pairs.entries()) {
      expect(remote.muser, `question ${index}`).toMatchObject({ prefill: 'remote', fallback: null, cachedTokens: 0 });
      expect(remote.muser.kvBytes).toBeGreaterThan(0);
      expect(local.muser, `question ${index}`).toMatchObject({ prefill: 'local', cachedTokens: 0, kvBytes: 0 });
    }
    const differing = pairs
      .filter(({ remote, local }) => remote.text !== local.text)
      .map(({ remote, local }) => ({ tokens: remote.muser.promptTokens, remote: remote.text, local: local.text }));
    const right = pairs.filter(({ remote, needle }) => remote.text.includes(needle.value)).length;
    process.stderr.write(`${type}: ${QUESTIONS - differing.length} of ${QUESTIONS} equal, ${right} right\n`);
    expect(QUESTIONS - differing.length, JSON.stringify(differing)).toBeGreaterThanOrEqual(LEAST_EQUAL);
    expect(right).toBeGreaterThanOrEqual(LEAST_RIGHT);
  });
});

describe('the prefix cache of vLLM', { timeout: 300_000 }, () => {
  it('serves another question about the same document, and only to the decoder that asked first', async () => {
    const document = `This text is asked about more than once.\n\n${needleAt(10).text}`;
    const first = messageOf({ text: document, question: needleAt(10).question });
    const second = messageOf({ text: document, question: 'What does grep do?' });

    const cold = await askCounted(nano.ready.http, first);
    expect(cold.computedTokens).toBe(cold.tokens - 1);
    expect(cold.answer.text).toContain(needleAt(10).value);
    const other = await askCounted(nano.ready.http, second);
    expect(other.decoder).toBe(cold.decoder);
    expect(other.computedTokens).toBeLessThan(2 * BLOCK_TOKENS);
    const again = await askCounted(nano.ready.http, first);
    expect(again.computedTokens).toBeLessThan(2 * BLOCK_TOKENS);
    expect(again.answer.text).toBe(cold.answer.text);

    const stranger = await askCounted(wide.ready.http, first);
    expect(stranger.decoder).toBe(wide.ready.nodeId);
    expect(stranger.decoder).not.toBe(cold.decoder);
    expect(stranger.computedTokens).toBe(stranger.tokens - 1);
    const familiar = await askCounted(wide.ready.http, first);
    expect(familiar.computedTokens).toBeLessThan(2 * BLOCK_TOKENS);
    expect(familiar.answer.text).toContain(needleAt(10).value);
  });
});

describe('several requests', { timeout: 300_000 }, () => {
  // fault: fails-under-load
  it('are prefilled four at once, and more of them wait their turn', async () => {
    const asked = [10, 11, 12, 13].flatMap((index) =>
      [nano.ready.http, wide.ready.http].map(async (decoder) => {
        const { text, question, value } = needleAt(index);
        const answer = await chat(decoder, messageOf({ text: `All at once.\n\n${text}`, question }), 'remote');
        expect(answer.muser).toMatchObject({ prefill: 'remote', fallback: null });
        expect(answer.text).toContain(value);
        return answer;
      }),
    );
    const waited = (await Promise.all(asked)).filter(({ queued }) => queued).length;
    expect(waited).toBeGreaterThan(0);
    expect(waited).toBeLessThanOrEqual(asked.length - AT_ONCE);
  });

  // fault: computes-for-nobody
  it('that are cancelled while vLLM computes leave it free for the next', async () => {
    const before = await sealed();
    for (let nth = 0; nth < 10; nth += 1) {
      const stop = new AbortController();
      const { text, question } = needleAt(QUESTIONS - 1);
      const message = messageOf({ text: `Number ${nth}, which nobody waits for.\n\n${text}`, question });
      const onProgress = ({ phase }: { phase: string }): void => {
        if (phase === 'transfer') stop.abort();
      };
      await expect(chat(nano.ready.http, message, 'remote', { signal: stop.signal, onProgress })).rejects.toThrow();
    }
    const { text, question, value } = needleAt(6);
    const after = await chat(nano.ready.http, messageOf({ text: `Afterwards.\n\n${text}`, question }), 'remote');
    expect(after.muser).toMatchObject({ prefill: 'remote', fallback: null });
    expect(after.queued).toBe(false);
    expect(after.text).toContain(value);
    await eventually('the producer writes it down', async () => (await sealed()).length > before.length);
    expect((await sealed()).length, 'none of the ten was carried to its end').toBe(before.length + 1);
    process.stderr.write(`first token ${after.muser.ttftMs} ms after ten cancels\n`);
  });
});

it('muser demo --producer vllm answers by both ways, the same', { timeout: 600_000 }, async () => {
  const run = await muser(['demo', '--producer', 'vllm', '--json'], { timeout: 500_000 });
  expect(run, run.stderr).toMatchObject({ exitCode: 0 });
  const result = JSON.parse(run.stdout) as { answer: string; localAnswer: string };
  expect(result).toMatchObject({ prefill: 'remote', producer: { backend: 'vllm' } });
  expect(result.answer).toContain('attic');
  expect(result.localAnswer).toBe(result.answer);
  expect(run.stderr).toContain('vLLM is ready');
});
