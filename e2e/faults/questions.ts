import { needleDocument } from '@muser/testing';
import { chat, type Answer } from '../test/support/chat.js';

/** Stands in every prompt, and must never stand in a log. */
export const MARKER = 'quaxolith';

export interface Question {
  readonly prompt: string;
  /** What the answer must hold. */
  readonly value: string;
  /** What a decoder answers that prefills by itself. */
  readonly local: Answer;
}

export interface QuestionOptions {
  readonly seed: number;
  /**
   * Pairs that are made before the first is asked again. A decoder keeps the prompts of its last two pairs, vLLM many more.
   */
  readonly different: number;
  /** URL of a decoder to which nothing happens. */
  readonly reference: () => string;
  readonly signal: AbortSignal;
}

type Pair = readonly [long: Question, short: Question];

/** Three chunks of 512 tokens, the last not quite full. */
const LONG_TOKENS = 1_380;
const SHORT_TOKENS = 120;
/** Keeps the producer busy for a moment. */
const OCCUPYING_TOKENS = 9_000;
/** About what the model's tokenizer makes of this text. */
const LETTERS_PER_TOKEN = 2.9;
const MAX_TRIES = 20;

/** Prompts of which nothing is in a cache, each with the answer of an undisturbed decoder. */
export class Questions {
  readonly #options: QuestionOptions;
  readonly #pairs: Promise<Pair>[] = [];
  #seed: number;
  #next = 0;

  constructor(options: QuestionOptions) {
    this.#options = options;
    this.#seed = options.seed;
  }

  /** Begins with the pair that take() gives next, when it is a new one. */
  prepare(): void {
    if (this.#next < this.#pairs.length) return;
    const pair = this.pair();
    // Told by take().
    pair.catch(() => undefined);
    this.#pairs.push(pair);
  }

  /** A long question to which something happens, and a short one for afterwards. */
  async take(): Promise<Pair> {
    this.prepare();
    const pair = this.#pairs[this.#next];
    this.#next = (this.#next + 1) % this.#options.different;
    if (pair === undefined) throw new Error('no question was prepared');
    return pair;
  }

  /** A short one without a reference, for whoever only wants it to be prefilled. */
  another(): { prompt: string } {
    return this.make(SHORT_TOKENS);
  }

  /** A prompt that takes a while, and whose answer nobody wants. */
  occupying(): string {
    return this.make(OCCUPYING_TOKENS).prompt;
  }

  private async pair(): Promise<Pair> {
    return [await this.answerable(LONG_TOKENS), await this.answerable(SHORT_TOKENS)];
  }

  /** One that the model can answer: small models do not know everything that they read. */
  private async answerable(tokens: number): Promise<Question> {
    const { reference, signal } = this.#options;
    for (let tries = 0; tries < MAX_TRIES; tries += 1) {
      const { prompt, value } = this.make(tokens);
      const local = await chat(reference(), prompt, 'local', { signal });
      if (local.text.includes(value)) return { prompt, value, local };
    }
    throw new Error(`the undisturbed decoder answered ${MAX_TRIES} questions wrong`);
  }

  private make(approximateTokens: number): { prompt: string; value: string } {
    this.#seed += 1;
    const { text, question, value } = needleDocument({
      seed: this.#seed,
      approximateTokens,
      tokenCount: (part) => Math.ceil(part.length / LETTERS_PER_TOKEN),
    });
    return { prompt: `Notes of ${MARKER} ${this.#seed}.\n\n${text}\n\n${question}`, value };
  }
}
