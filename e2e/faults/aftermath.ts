import { readdir, readFile } from 'node:fs/promises';
import { setTimeout as delay } from 'node:timers/promises';
import { processesBelow } from '@muser/testing';
import type { Answer } from '../test/support/chat.js';
import { MARKER } from './questions.js';
import type { System } from './system.js';
import { until } from './until.js';

/** Some failures take a producer's engine with them, which vLLM needs a while to start again. */
const RETURN_LIMIT_MS = { llama: 30_000, vllm: 180_000 } as const;

/** Each look at what the operator sees takes up to a second. */
const CELLS_BETWEEN = 10;

/** What has to be so after every cell, whatever happened in it. */
export class Aftermath {
  /** Of the log files: bytes that were looked at already. */
  readonly #seen = new Map<string, number>();
  readonly #everSeen = new Set<number>();
  #tries = 0;
  #cells = 0;

  constructor(
    private readonly system: System,
    private readonly ask: (prompt: string) => Promise<Answer>,
  ) {}

  /** Nothing runs any more on either side, and everybody sees everybody again. */
  async settled(): Promise<void> {
    const limitMs = RETURN_LIMIT_MS[this.system.backend];
    let last = '';
    await until(
      'the decoder has no active sequence and sees coordinator and producer',
      async () => {
        const { sequences, coordinator, producers } = await this.system.health('decoder');
        last = JSON.stringify({ sequences, coordinator, producers });
        const sees = coordinator === 'connected' && producers.some(({ state }) => state === 'ready');
        return sequences.active === 0 && sees;
      },
      limitMs,
      () => last,
    );
    await until(
      'the producer has no transfer',
      async () => {
        const { state, activeTransfers, queueLength } = await this.system.producerNow();
        last = JSON.stringify({ state, activeTransfers, queueLength });
        return state === 'ready' && activeTransfers === 0 && queueLength === 0;
      },
      limitMs,
      () => last,
    );
  }

  /** The operator is told the same, within a second: asked now and then. */
  async settledForOperator(): Promise<void> {
    this.#cells += 1;
    if (this.#cells % CELLS_BETWEEN !== 1) return;
    await until('the operator sees no transfer', async () => {
      const { state, load } = await this.system.producer();
      return state === 'healthy' && load?.activeTransfers === 0 && load.queueLength === 0;
    });
  }

  /** The next request is prefilled remotely, as soon as the decoder tries this producer again. */
  async worksAgain({ prompt, value = '' }: { prompt: string; value?: string }): Promise<void> {
    const deadline = performance.now() + RETURN_LIMIT_MS[this.system.backend];
    for (let nth = 0; ; nth += 1) {
      this.#tries += 1;
      // What was prefilled locally is held now, so each try needs a beginning of its own.
      const { text, muser } = await this.ask(nth === 0 ? prompt : `Try ${this.#tries}. ${prompt}`);
      if (muser.prefill === 'remote' && muser.fallback === null) {
        if (nth === 0 && !text.includes(value)) throw new Error(`the request afterwards was answered "${text}"`);
        return;
      }
      const { code, message } = muser.fallback ?? { code: 'none', message: '' };
      if (code !== 'NO_PRODUCER' || performance.now() > deadline) {
        throw new Error(`the request afterwards was prefilled ${muser.prefill}: ${code}, ${message}`);
      }
      await delay(Number(/again in (\d+) ms/.exec(message)?.[1] ?? 100) + 1);
    }
  }

  /** Neither a process that nobody knows nor a word of a prompt in a log. */
  async nothingIsLeft(): Promise<void> {
    for (const log of this.system.logs) {
      const bytes = await readFile(log);
      const text = bytes.subarray(this.#seen.get(log) ?? 0).toString();
      this.#seen.set(log, bytes.length);
      if (text.includes(MARKER)) throw new Error(`text of a prompt is in ${log}`);
    }
    const { root, pids } = this.system;
    const known = new Set(pids.flatMap((pid) => [pid, ...processesBelow(pid)]));
    for (const pid of known) this.#everSeen.add(pid);
    // What a producer started may outlive it with nothing in its command line that tells whose it was.
    const isOurs = (pid: number, command: string): boolean => this.#everSeen.has(pid) || command.includes(root);
    const strangers: string[] = [];
    for (const name of (await readdir('/proc')).filter((entry) => /^\d+$/.test(entry))) {
      const command = (await readFile(`/proc/${name}/cmdline`, 'utf8').catch(() => '')).replaceAll('\0', ' ').trim();
      const pid = Number(name);
      if (command !== '' && !known.has(pid) && isOurs(pid, command)) strangers.push(`${pid} (${command})`);
    }
    if (strangers.length > 0) throw new Error(`processes were left behind: ${strangers.join(', ')}`);
  }
}
