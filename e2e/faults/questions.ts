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

/** Three chunks of 512 tokens, the last not quite full. */
const LONG_TOKENS = 1_380;
const SHORT_TOKENS = 120;
/** Keeps the producer busy for a moment. */
const OCCUPYING_TOKENS = 9_000;
/** About what the model's tokenizer makes of this text. */
const LETTERS_PER_TOKEN = 2.9;
const MAX_TRIES = 20;

/** Prompts that nobody has seen before, so that nothing of them is in a cache, with the answer of an undisturbed decoder. */
export class Questions {
  #seed: number;
  #prepared: Promise<[Question, Question]> | null = null;

  /** @param reference URL of a decoder to which nothing happens */
  constructor(
    seed: number,
    private readonly reference: () => string,
    private readonly signal: AbortSignal,
  ) {
    this.#seed = seed;
  }

  /** Begins with the next pair, in time for take(). */
  prepare(): void {
    this.#prepared ??= this.pair();
    // Told by take().
    this.#prepared.catch(() => undefined);
  }

  /** A long question to which something happens, and a short one for afterwards. */
  async take(): Promise<{ long: Question; short: Question }> {
    this.prepare();
    const prepared = this.#prepared;
    this.#prepared = null;
    const [long, short] = (await prepared) ?? [];
    if (long === undefined || short === undefined) throw new Error('no question was prepared');
    return { long, short };
  }

  /** A prompt that takes a while, and whose answer nobody wants. */
  occupying(): string {
    return this.make(OCCUPYING_TOKENS).prompt;
  }

  private async pair(): Promise<[Question, Question]> {
    return [await this.answerable(LONG_TOKENS), await this.answerable(SHORT_TOKENS)];
  }

  /** One that the model can answer: small models do not know everything that they read. */
  private async answerable(tokens: number): Promise<Question> {
    for (let tries = 0; tries < MAX_TRIES; tries += 1) {
      const { prompt, value } = this.make(tokens);
      const local = await chat(this.reference(), prompt, 'local', { signal: this.signal });
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
