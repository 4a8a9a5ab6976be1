import { chat, type Answer, type Progress } from '../test/support/chat.js';
import { Aftermath } from './aftermath.js';
import type { Cell, Outcome } from './cells.js';
import { happen, type Undo } from './happenings.js';
import { judge } from './judge.js';
import { stopAt } from './phases.js';
import { hitProcess, prepareProcess } from './process-faults.js';
import type { Question, Questions } from './questions.js';
import type { System } from './system.js';
import { within } from './until.js';

const ANSWER_LIMIT_MS = 60_000;
/** Certainly before the end of what is sent; a Seal has a few hundred bytes. */
const TOKENS_BEFORE_END = 2;

/** Runs cells one after another on one system. */
export class CellRunner {
  readonly #aftermath: Aftermath;
  #bytesPerToken = 0;

  constructor(
    private readonly system: System,
    private readonly questions: Questions,
    private readonly signal: AbortSignal,
  ) {
    this.#aftermath = new Aftermath(system, (prompt) => this.ask(prompt));
  }

  /** The first transfer tells how many bytes a token takes. */
  async warmUp(): Promise<void> {
    const [long] = await this.questions.take();
    const { muser } = await this.ask(long.prompt);
    if (muser.prefill !== 'remote') throw new Error(`the system does not prefill remotely: ${JSON.stringify(muser)}`);
    this.#bytesPerToken = muser.kvBytes / (muser.promptTokens - 1);
    this.questions.prepare();
  }

  /** @throws Error that says in what the outcome differs from what was expected, and what was wrong afterwards */
  async run(cell: Cell): Promise<Outcome> {
    const [long, short] = await this.questions.take();
    const ended = await Promise.allSettled([this.happened(cell, long)]);
    this.questions.prepare();
    const after = await Promise.allSettled([this.checkAftermath(short)]);
    const reasons = [...ended, ...after].filter(({ status }) => status === 'rejected') as PromiseRejectedResult[];
    const [outcome] = ended;
    if (outcome.status === 'fulfilled' && reasons.length === 0) return outcome.value;
    throw new Error(
      reasons.map(({ reason }) => (reason instanceof Error ? reason.message : String(reason))).join('; '),
    );
  }

  private async happened(cell: Cell, question: Question): Promise<Outcome> {
    const { happening } = cell;
    let undo: Undo = async () => undefined;
    try {
      if (happening.kind === 'process') {
        const prepared = await prepareProcess(happening.fault, happening.target, this.system);
        if (prepared !== null) {
          undo = prepared;
          await this.#aftermath.settled();
        }
      }
      if (this.system.connectionOfDecoder() === null) await this.#aftermath.worksAgain(this.questions.another());
      return judge(cell, question, await this.disturbed(cell, question));
    } finally {
      await undo();
    }
  }

  private async checkAftermath(question: Question): Promise<void> {
    await this.#aftermath.settled();
    await this.#aftermath.worksAgain(question);
    await this.#aftermath.settledForOperator();
    await this.#aftermath.nothingIsLeft();
  }

  /** Null when the decoder itself was killed. */
  private async disturbed(cell: Cell, question: Question): Promise<Answer | null> {
    const { happening } = cell;
    const isLost = happening.kind === 'process' && happening.target === 'decoder' && happening.fault === 'SIGKILL';
    const stop = new AbortController();
    let undo: Undo = async () => undefined;
    try {
      const { asked, undo: undoing } = await this.begin(cell, question, stop.signal);
      undo = undoing;
      const answer = await within('the answer comes', isLost ? asked.catch(() => null) : asked, ANSWER_LIMIT_MS);
      return answer;
    } finally {
      await undo();
      this.system.calm();
      stop.abort();
    }
  }

  /** Asks, and lets it happen. @returns the answer to come, and what undoes what happened */
  private async begin(
    cell: Cell,
    { prompt, local }: Question,
    signal: AbortSignal,
  ): Promise<{ asked: Promise<Answer>; undo: Undo }> {
    const { system } = this;
    const { phase, happening, share } = cell;
    if (phase === 'before') {
      if (happening.kind !== 'process') throw new Error('a link can only break while it is used');
      await system.disconnectDecoder();
      const undo = await hitProcess(happening.fault, happening.target, system, () => undefined);
      return { asked: this.ask(prompt, undefined, signal), undo };
    }
    const payloadBytes = Math.floor(this.#bytesPerToken * (local.muser.promptTokens - TOKENS_BEFORE_END));
    const occupant = phase === 'queued' ? await this.occupy() : null;
    let isQueued = (): void => undefined;
    const queued = new Promise<void>((resolve) => (isQueued = resolve));
    try {
      const reached = stopAt(cell, system, { payloadBytes }, () => queued);
      reached.catch(() => undefined);
      const asked = this.ask(
        prompt,
        ({ phase: now, where }) => now === 'queued' && where === 'remote' && isQueued(),
        signal,
      );
      asked.catch(() => undefined);
      const over = asked.then(() => null);
      const point = await within(`the transfer is in phase "${phase}"`, Promise.race([reached, over]));
      if (point === null) return { asked: missed(await asked, share), undo: async () => undefined };
      return { asked, undo: await happen(cell, point, system) };
    } finally {
      occupant?.abort();
    }
  }

  private ask(prompt: string, onProgress?: (progress: Progress) => void, signal?: AbortSignal): Promise<Answer> {
    const signals = signal === undefined ? this.signal : AbortSignal.any([this.signal, signal]);
    const { system } = this;
    return chat(system.url('decoder'), prompt, 'remote', { signal: signals, ...(onProgress && { onProgress }) });
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
}

/** At a random byte the transfer may be over; in a phase of its own it may not. */
async function missed(answer: Answer, share: number | undefined): Promise<Answer> {
  if (share !== undefined) return answer;
  throw new Error(
    `the answer came before that phase: ${answer.muser.prefill}, ${JSON.stringify(answer.muser.fallback)}`,
  );
}
