// The built process when it is told to end, with requests in every phase.
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { post } from '../support/client.js';
import { MODEL_PATH } from '../support/rig.js';

const MAIN = fileURLToPath(new URL('../../dist/main.js', import.meta.url));
/** About 2,000 tokens: some seconds of local prefill. */
const LONG_PROMPT = 'The tape lies in the cellar. '.repeat(300);
/** The ends of an answer, so that it goes on until its limit. */
const NO_END = { '5': -100, '1': -100 };

let stateDir: string;
let child: ChildProcess;
let url: string;
beforeEach(async () => {
  stateDir = await mkdtemp(join(tmpdir(), 'muser-decoder-draining-'));
});
afterEach(async () => {
  if (child.exitCode === null && child.signalCode === null) child.kill('SIGKILL');
  await exited();
  await rm(stateDir, { recursive: true, force: true });
});

async function start(drainMs: number): Promise<void> {
  const file = join(stateDir, 'config.json');
  const config = { stateDir, model: MODEL_PATH, contextTokens: 8_192, threads: 1, logLevel: 'silent' };
  await writeFile(file, JSON.stringify({ ...config, maxSequences: 2, chunkTokens: 64, drainMs }));
  child = spawn(process.execPath, [MAIN, 'run', '--config', file], { stdio: ['ignore', 'pipe', 'ignore'] });
  if (child.stdout === null) throw new Error('no output');
  for await (const line of createInterface({ input: child.stdout })) {
    url = (JSON.parse(line) as { http: string }).http;
    return;
  }
}

async function exited(): Promise<number | null> {
  if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
  return child.exitCode;
}

/** A streamed answer. */
class Answer {
  private text = '';

  private constructor(private readonly reader: ReadableStreamDefaultReader<Uint8Array>) {}

  static async begin(content: string, maxTokens: number): Promise<Answer> {
    const response = await post(url, {
      messages: [{ role: 'user', content }],
      stream: true,
      max_tokens: maxTokens,
      logit_bias: NO_END,
      muser: { progress: true },
    });
    if (response.body === null) throw new Error('no answer');
    return new Answer(response.body.getReader() as ReadableStreamDefaultReader<Uint8Array>);
  }

  /** Reads until it has said this. */
  async saying(part: string): Promise<this> {
    while (!this.text.includes(part)) {
      const { value, done } = await this.reader.read();
      if (done) throw new Error(`it never said ${part}: ${this.text}`);
      this.text += Buffer.from(value).toString();
    }
    return this;
  }

  /** Reads to the end: whether it is complete, or the code that it ends with. */
  async ending(): Promise<string> {
    for (let part = await this.reader.read(); !part.done; part = await this.reader.read()) {
      this.text += Buffer.from(part.value).toString();
    }
    return this.text.includes('[DONE]') ? 'done' : (/"code":"([A-Z_]+)"/.exec(this.text)?.[1] ?? 'cut');
  }
}

/** One that decodes, one that prefills, and two that wait for room. */
async function requestsInEveryPhase(): Promise<Answer[]> {
  const decoding = await (await Answer.begin('Hello', 200)).saying('"phase":"decode"');
  const prefilling = await (await Answer.begin(LONG_PROMPT, 4)).saying('"phase":"prefill"');
  const waiting = await (await Answer.begin('Hello', 4)).saying('"role":"assistant"');
  const last = await (await Answer.begin('Hello', 4)).saying('"phase":"queued"');
  return [decoding, prefilling, waiting, last];
}

/** What a new request is told as soon as the decoder drains: a signal may take a moment to arrive. */
async function firstRefusal(): Promise<Response> {
  for (;;) {
    const response = await post(url, { messages: [{ role: 'user', content: 'Hello' }], max_tokens: 1 });
    if (response.status !== 200) return response;
  }
}

// promise: SIGTERM lets a decoder's requests end, whatever they do, and takes no new ones.
test('requests in every phase get their answer, and new ones are refused', async () => {
  await start(120_000);
  const answers = await requestsInEveryPhase();
  child.kill('SIGTERM');
  const endings = Promise.all(answers.map((answer) => answer.ending()));
  const refused = await firstRefusal();
  expect(refused.status).toBe(503);
  expect(await refused.json()).toMatchObject({ error: { code: 'UNAVAILABLE', retryable: true } });
  expect(await endings).toEqual(['done', 'done', 'done', 'done']);
  expect(await exited()).toBe(0);
});

test('requests that take longer than draining may are told why they end', async () => {
  await start(1);
  const answers = await requestsInEveryPhase();
  child.kill('SIGTERM');
  expect(await Promise.all(answers.map((answer) => answer.ending()))).toEqual(Array(4).fill('UNAVAILABLE'));
  expect(await exited()).toBe(0);
});

test('a second signal ends it at once', async () => {
  await start(120_000);
  const [decoding] = await requestsInEveryPhase();
  child.kill('SIGTERM');
  await firstRefusal();
  child.kill('SIGTERM');
  await expect(decoding?.ending()).rejects.toThrow();
  expect(await exited()).toBe(143);
});
