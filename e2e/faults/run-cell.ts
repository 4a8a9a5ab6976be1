import { readFile, stat } from 'node:fs/promises';
import type { ErrorCode } from '@muser/protocol';
import { processesBelow } from '@muser/testing';
import { chat, type Answer, type Progress } from '../test/support/chat.js';
import { outcomeText, type Cell, type Outcome, type Way } from './cells.js';
import { happen } from './happenings.js';
import { stopAt, type Point } from './phases.js';
import { MARKER, type Question, type Questions } from './questions.js';
import type { System } from './system.js';
import { until, within } from './until.js';

const ANSWER_LIMIT_MS = 60_000;
/** A producer that failed is left alone for a while, longer each time. */
const RETURN_LIMIT_MS = 20_000;

/** Runs cells one after another on one system. */
export class CellRunner {
  /** Of the log files: what was looked at already. */
  readonly #seen = new Map<string, number>();
  #bytesPerToken = 0;

  constructor(
    private readonly system: System,
    private readonly questions: Questions,
    private readonly signal: AbortSignal,
  ) {}

  /** The first transfer tells how many bytes a token takes. */
  async warmUp(): Promise<void> {
    const { long } = await this.questions.take();
    const { muser } = await this.ask(long.prompt);
    if (muser.prefill !== 'remote') throw new Error(`the system does not prefill remotely: ${JSON.stringify(muser)}`);
    this.#bytesPerToken = muser.kvBytes / (muser.promptTokens - 1);
    this.questions.prepare();
  }

  /** @throws Error that says in what the outcome differs from what was expected */
  async run(cell: Cell): Promise<Outcome> {
    const { long, short } = await this.questions.take();
    try {
      const answer = await this.disturbed(cell, long);
      this.questions.prepare();
      return judge(cell, long, answer);
    } finally {
      this.questions.prepare();
      await this.settled();
      await this.worksAgain(short);
      await this.nothingIsLeft();
    }
  }

  private async disturbed(cell: Cell, { prompt, local }: Question): Promise<Answer> {
    const { system } = this;
    const payloadBytes = Math.floor(this.#bytesPerToken * (local.muser.promptTokens - 1));
    const occupant = cell.phase === 'queued' ? await this.occupy() : null;
    const told = new Told();
    const stop = new AbortController();
    let undo = async (): Promise<void> => undefined;
    try {
      const reached = stopAt(cell.phase, system, { payloadBytes }, (what) => told.of(what));
      reached.catch(() => undefined);
      const asked = this.ask(prompt, (progress) => told.hear(progress), stop.signal);
      asked.catch(() => undefined);
      const point = await within(`the transfer is in phase "${cell.phase}"`, Promise.race([reached, tooSoon(asked)]));
      undo = await happen(cell.happening, point, system);
      occupant?.abort();
      return await within('the answer comes', asked, ANSWER_LIMIT_MS);
    } finally {
      occupant?.abort();
      await undo();
      system.toProducer.calm();
      stop.abort();
    }
  }

  private ask(prompt: string, onProgress?: (progress: Progress) => void, signal = this.signal): Promise<Answer> {
    return chat(this.system.url('decoder'), prompt, 'remote', { signal, ...(onProgress && { onProgress }) });
  }

  /** The bystander takes the producer's only place. @returns what gives it back */
  private async occupy(): Promise<AbortController> {
    const stop = new AbortController();
    const signal = AbortSignal.any([stop.signal, this.signal]);
    const working = new Promise<void>((resolve, reject) => {
      const onProgress = ({ phase, where }: Progress): void => {
        if (where === 'remote' && phase !== 'queued') resolve();
      };
      chat(this.system.url('bystander'), this.questions.occupying(), 'remote', { signal, onProgress }).catch(reject);
    });
    await within('the producer works for the bystander', working);
    return stop;
  }

  private async settled(): Promise<void> {
    const since = Date.now();
    await until('the decoder has no active sequence', async () => {
      const { sequences, coordinator } = await this.system.health('decoder');
      return sequences.active === 0 && coordinator === 'connected';
    });
    await until('the producer is healthy and has no transfer', async () => {
      const { state, lastSeen, load } = await this.system.producer();
      const isIdle = load !== null && load.activeTransfers === 0 && load.queueLength === 0;
      return state === 'healthy' && isIdle && lastSeen !== null && Date.parse(lastSeen) >= since;
    });
  }

  private async worksAgain({ prompt, value }: Question): Promise<void> {
    const deadline = performance.now() + RETURN_LIMIT_MS;
    for (let nth = 0; ; nth += 1) {
      // What was prefilled locally meanwhile is held now, so each try needs a beginning of its own.
      const { text, muser } = await this.ask(nth === 0 ? prompt : `Try ${nth}. ${prompt}`);
      if (muser.prefill === 'remote' && muser.fallback === null) {
        if (nth === 0 && !text.includes(value)) throw new Error('the request afterwards was answered wrong');
        return;
      }
      const { code, message } = muser.fallback ?? { code: 'none', message: '' };
      const waits = code === 'NO_PRODUCER';
      if (!waits || performance.now() > deadline) {
        throw new Error(`the request afterwards was not prefilled remotely: ${code}, ${message}`);
      }
      const pause = Number(/again in (\d+) ms/.exec(message)?.[1] ?? 100);
      await new Promise((resolve) => setTimeout(resolve, pause + 1));
    }
  }

  private async nothingIsLeft(): Promise<void> {
    for (const log of this.system.logs) {
      const from = this.#seen.get(log) ?? 0;
      const { size } = await stat(log);
      if (size <= from) continue;
      const text = (await readFile(log)).subarray(from).toString();
      this.#seen.set(log, size);
      if (text.includes(MARKER)) throw new Error(`text of a prompt is in ${log}`);
    }
    const known = this.system.pids;
    const strangers = processesBelow(process.pid).filter((pid) => !known.some((one) => isOrBelow(pid, one)));
    if (strangers.length > 0) throw new Error(`processes were left behind: ${strangers.join(', ')}`);
  }
}

function isOrBelow(pid: number, root: number): boolean {
  return pid === root || processesBelow(root).includes(pid);
}

/** @throws Error with every difference from what was expected */
function judge({ expect }: Cell, { local, value }: Question, answer: Answer): Outcome {
  const { text, muser } = answer;
  const outcome = outcomeOf(answer);
  const problems = [
    text === local.text ? null : `the answer is "${text}", not "${local.text}"`,
    text.includes(value) ? null : `the answer does not hold "${value}"`,
    expect.map(outcomeText).includes(outcomeText(outcome))
      ? null
      : `${outcomeText(outcome)} instead of ${expect.map(outcomeText).join(' or ')}: ${muser.fallback?.message ?? 'no fallback'}`,
    muser.fallback === null || muser.fallback.code === outcome.failures.at(-1)
      ? null
      : `the fallback is ${muser.fallback.code}, the last failure ${outcome.failures.at(-1) ?? 'none'}`,
  ].filter((problem) => problem !== null);
  if (problems.length > 0) throw new Error(problems.join('; '));
  return outcome;
}

function outcomeOf({ muser }: Answer): Outcome {
  const { attempts } = muser as Answer['muser'] & { attempts: { code: ErrorCode | null }[] };
  const failures = attempts.flatMap(({ code }) => code ?? []);
  const fallback = muser.fallback === null ? [] : [muser.fallback.code as ErrorCode];
  return { way: muser.prefill as Way, failures: attempts.length === 0 ? fallback : failures };
}

async function tooSoon(asked: Promise<Answer>): Promise<Point> {
  const { muser } = await asked;
  throw new Error(`the answer came before that phase: ${muser.prefill}, ${JSON.stringify(muser.fallback)}`);
}

/** What the decoder tells of a request while it runs. */
class Told {
  readonly #heard = new Set<string>();
  readonly #waiting = new Map<string, () => void>();

  hear({ phase, where }: Progress): void {
    const what = phase === 'queued' && where !== 'remote' ? '' : phase;
    this.#heard.add(what);
    this.#waiting.get(what)?.();
  }

  async of(what: 'queued' | 'decode'): Promise<void> {
    if (!this.#heard.has(what)) await new Promise<void>((resolve) => this.#waiting.set(what, resolve));
  }
}
