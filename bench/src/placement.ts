import { spawn, type ChildProcess } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { openSync, readFileSync } from 'node:fs';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as delay } from 'node:timers/promises';

import { loadModel, type Model } from '@muser/metal';
import { MuserError, type ProducerEntry, type ProducerList } from '@muser/protocol';
import { needleDocument, TestAuthority, writeIdentityFolder } from '@muser/testing';
import { addPlacementService, createServer, PeerListener } from '@muser/transport';

import { inRepository, MUSE_NANO } from './machine.js';
import { listenAsProducer, StoredPrompt, type Schedule } from './replay-producer.js';
import { figure, median } from './statistics.js';

const PROMPT_TOKENS = 2_000;
const CHUNK_TOKENS = 128;
/** Each is A B B A: local alone, auto, auto, local alone. */
const ROUNDS = 2;
const LATE_SHARE = 0.1;
const LATE_MS = 200;
/** What every producer says of its rate, as a multiple of local prefill: believed until it is measured. */
const CLAIMED_SPEEDUP = 4;
const CHECKS_A_ROUND = 10;
const LOG_FILE = 'decoder.log';
const HEARTBEAT_MS = 500;
const WAIT_LIMIT_MS = 20_000;

/** What a producer does, given when local prefill would have each chunk. */
const SCENARIOS: Record<string, (localAt: Schedule, chunks: number) => Schedule> = {
  '4x': (localAt) => (chunk) => localAt(chunk) / 4,
  '1.5x': (localAt) => (chunk) => localAt(chunk) / 1.5,
  '1x': (localAt) => localAt,
  '0.5x': (localAt) => (chunk) => localAt(chunk) * 2,
  '0.1x': (localAt) => (chunk) => localAt(chunk) * 10,
  stopsAfterHalf: (localAt, chunks) => (chunk) => (chunk < chunks / 2 ? localAt(chunk) / 4 : Infinity),
  fastThenSlow: (localAt, chunks) => (chunk) => {
    const fast = Math.min(chunk, Math.floor(chunks / 3));
    return localAt(fast) / 4 + (localAt(chunk) - localAt(fast)) * 10;
  },
};

interface Asked {
  readonly ttftMs: number;
  readonly attempts: readonly { to: number; code: string | null }[];
}

/**
 * Time to the first token in mode `auto` with a producer of each pace, against local prefill alone in the same decoder, in
 * turns. Each request meets a producer that the decoder has never used, and that says it is fast: the worst it can believe.
 */
export async function placementBenchmark(quick: boolean): Promise<object> {
  const folder = await mkdtemp(join(tmpdir(), 'muser-bench-'));
  const stops: (() => unknown)[] = [() => rm(folder, { recursive: true, force: true })];
  try {
    return await measure(await Scene.open(folder, stops), quick ? 1 : ROUNDS);
  } finally {
    for (const stop of stops.reverse()) await stop();
  }
}

async function measure(scene: Scene, rounds: number): Promise<object> {
  await scene.withProducer(
    1,
    () => 0,
    () => scene.ask('remote'),
  );
  await scene.ask('local');
  const results: Record<string, object> = {};
  for (const [name, scheduleOf] of Object.entries(SCENARIOS)) {
    const locals: number[] = [];
    const autos: { asked: Asked; localMs: number }[] = [];
    for (let round = 0; round < rounds; round++) {
      const before = (await scene.ask('local')).ttftMs;
      const pair = [await scene.paced('auto', before, scheduleOf), await scene.paced('auto', before, scheduleOf)];
      const after = (await scene.ask('local')).ttftMs;
      locals.push(before, after);
      autos.push(...pair.map((asked, index) => ({ asked, localMs: index === 0 ? before : after })));
    }
    const result = {
      localMs: figure(median(locals)),
      autoMs: figure(median(autos.map(({ asked }) => asked.ttftMs))),
      autoByLocal: figure(median(autos.map(({ asked, localMs }) => asked.ttftMs / localMs))),
      overBoundMs: autos.map(({ asked, localMs }) => Math.round(asked.ttftMs - localMs * (1 + LATE_SHARE) - LATE_MS)),
      localSpread: figure(Math.max(...locals) / Math.min(...locals)),
      ends: autos.map(({ asked }) => asked.attempts.map(({ to, code }) => `${code ?? 'whole'} at ${to}`).join(', ')),
    };
    process.stderr.write(`bench: placement ${name} ${JSON.stringify(result)}\n`);
    results[name] = result;
  }
  const check = await checkFigures(scene, rounds * CHECKS_A_ROUND);
  process.stderr.write(`bench: placement check ${JSON.stringify(check)}\n`);
  return {
    promptTokens: scene.promptTokens,
    chunkTokens: CHUNK_TOKENS,
    bound: `1.1 x local + ${LATE_MS} ms`,
    ...results,
    check,
  };
}

/** What the check of a producer's first transfer takes, beside the time to the first token of the same request. */
async function checkFigures(scene: Scene, requests: number): Promise<object> {
  const { ttftMs: localMs } = await scene.ask('local');
  const earlier = scene.checksMs().length;
  const asked: Asked[] = [];
  for (let request = 0; request < requests; request++) {
    asked.push(await scene.paced('remote', localMs, (localAt) => (chunk) => localAt(chunk) / 4));
  }
  const checksMs = scene.checksMs().slice(earlier);
  if (checksMs.length !== requests) throw new Error(`${checksMs.length} of ${requests} transfers were checked`);
  return {
    requests,
    ttftMs: figure(median(asked.map(({ ttftMs }) => ttftMs))),
    checkMs: figure(median(checksMs)),
    ofTtft: figure(median(asked.map(({ ttftMs }, index) => (checksMs[index] ?? NaN) / ttftMs))),
  };
}

/** A real decoder process, a coordinator that lists what it is told, and the rows of one prompt. */
class Scene {
  promptTokens = 0;
  private producers: readonly ProducerEntry[] = [];
  private changed = (): void => undefined;

  private constructor(
    private readonly authority: TestAuthority,
    private readonly prompt: StoredPrompt,
    private readonly text: string,
    private readonly modelDigest: Uint8Array,
    private readonly folder: string,
  ) {}

  private url = '';

  static async open(folder: string, stops: (() => unknown)[]): Promise<Scene> {
    const authority = await TestAuthority.create();
    const model = await loadModel(MUSE_NANO);
    stops.push(() => model.close());
    const digest = createHash('sha256').update(readFileSync(MUSE_NANO)).digest();
    const prompt = new StoredPrompt(model, digest, CHUNK_TOKENS);
    const scene = new Scene(authority, prompt, documentOf(model), digest, folder);
    const coordinator = await scene.listenAsCoordinator();
    stops.push(() => coordinator.close(0));
    await writeIdentityFolder(join(folder, 'identity'), await authority.identity('decoder'));
    const child = await startDecoder(folder, `127.0.0.1:${coordinator.address.port}`);
    stops.push(() => ended(child.process));
    scene.url = child.url;
    return scene;
  }

  /** Offers one producer, of an identity that was never seen, while `use` runs. */
  async withProducer<T>(localTokensPerSecond: number, schedule: Schedule, use: () => Promise<T>): Promise<T> {
    const identity = await this.authority.identity('producer');
    const { target, close } = await listenAsProducer(identity, this.prompt, schedule);
    try {
      await this.publish([
        {
          nodeId: identity.nodeId,
          name: 'paced',
          addresses: [target],
          signingPublicKey: identity.signingKey.publicKey,
          producerModel: this.modelDigest,
          state: 'ready',
          queueLength: 0,
          prefillTokensPerSecond: localTokensPerSecond * CLAIMED_SPEEDUP,
          maxPromptTokens: 32_768,
          // No producer of this benchmark looks at it.
          ticket: Uint8Array.of(1),
          ticketExpiresAtMs: Date.now() + 600_000,
          backend: 'replay',
        },
      ]);
      return await use();
    } finally {
      await this.publish([]);
      await close();
    }
  }

  /** One request, with a producer whose pace is told relative to local prefill. */
  paced(
    mode: 'auto' | 'remote',
    localMs: number,
    scheduleOf: (localAt: Schedule, chunks: number) => Schedule,
  ): Promise<Asked> {
    const { chunkCount } = this.prompt;
    const localAt: Schedule = (chunk) => (localMs * (chunk + 1)) / chunkCount;
    const rate = (this.promptTokens / localMs) * 1_000;
    return this.withProducer(rate, scheduleOf(localAt, chunkCount), () => this.ask(mode));
  }

  async ask(prefill: 'local' | 'remote' | 'auto'): Promise<Asked> {
    const response = await fetch(`${this.url}/v1/chat/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({
        messages: [{ role: 'user', content: this.text }],
        temperature: 0,
        max_tokens: 4,
        muser: { prefill },
      }),
    });
    const { muser } = (await response.json()) as { muser: Asked & { promptTokens: number; cachedTokens: number } };
    if (muser.cachedTokens > 0) throw new Error('the prompt was in the cache');
    this.promptTokens = muser.promptTokens;
    return muser;
  }

  /** What each check of a transfer has taken so far. */
  checksMs(): number[] {
    const lines = readFileSync(join(this.folder, LOG_FILE), 'utf8').split('\n');
    const checks = lines.filter((line) => line.includes('"transfer checked"'));
    return checks.map((line) => (JSON.parse(line) as { checkMs: number }).checkMs);
  }

  private async listenAsCoordinator(): Promise<PeerListener> {
    const server = createServer();
    addPlacementService(server, {
      authorize: () => undefined,
      renewCertificate: () => Promise.reject(new MuserError('UNAVAILABLE', 'a benchmark renews no certificate')),
      watch: async (call) => {
        while (!call.signal.aborted) {
          const producers = [...this.producers];
          const list: ProducerList = { coordinatorTimeMs: Date.now(), producers, renewOrder: '', unavailable: [] };
          await call.send(list);
          await Promise.race([delay(HEARTBEAT_MS), new Promise<void>((resolve) => (this.changed = resolve))]);
        }
      },
    });
    const identity = await this.authority.identity('coordinator');
    return PeerListener.listen({ identity, host: '127.0.0.1', port: 0, server });
  }

  /** Waits until the decoder knows exactly these. */
  private async publish(producers: readonly ProducerEntry[]): Promise<void> {
    this.producers = producers;
    this.changed();
    const endsAt = performance.now() + WAIT_LIMIT_MS;
    for (;;) {
      const health = (await (await fetch(`${this.url}/health`)).json()) as { producers: { nodeId: string }[] };
      const known = health.producers.map(({ nodeId }) => nodeId).join();
      if (known === producers.map(({ nodeId }) => nodeId).join()) return;
      if (performance.now() > endsAt) throw new Error('the decoder did not take the list of producers');
      await delay(10);
    }
  }
}

function documentOf(model: Model): string {
  const { text, question } = needleDocument({
    seed: 1,
    approximateTokens: PROMPT_TOKENS,
    tokenCount: (part) => model.tokenize(part, { special: false }).length,
  });
  return `${text}\n\n${question}`;
}

async function startDecoder(stateDir: string, coordinator: string): Promise<{ url: string; process: ChildProcess }> {
  const config = join(stateDir, 'config.json');
  await writeFile(
    config,
    JSON.stringify({
      ...{ stateDir, coordinator, model: MUSE_NANO, contextTokens: 2 * PROMPT_TOKENS, chunkTokens: CHUNK_TOKENS },
      // One thread: the other core is the producer's. The same prompt is asked every time, so nothing is kept of it.
      ...{ threads: 1, maxSequences: 1, keptTokens: 0, exitWithParent: true },
    }),
  );
  const log = openSync(join(stateDir, LOG_FILE), 'a');
  const main = inRepository('packages/mac-decoder/dist/main.js');
  const child = spawn(process.execPath, [main, 'run', '--config', config], { stdio: ['pipe', 'pipe', log] });
  const output = child.stdout;
  if (output === null) throw new Error('the decoder has no output');
  for await (const line of createInterface({ input: output })) {
    const { ready, http } = JSON.parse(line) as { ready?: true; http: string };
    if (ready) return { url: http, process: child };
  }
  throw new Error(`the decoder did not start: ${readFileSync(join(stateDir, LOG_FILE), 'utf8')}`);
}

async function ended(child: ChildProcess): Promise<void> {
  child.kill('SIGTERM');
  if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
}
