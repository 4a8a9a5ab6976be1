import { Engine, GREEDY, type Model, type Sequence } from '@muser/metal';
import { fromEngineError } from '@muser/protocol';

import { withinLimit } from '../deadline.js';
import type { PromptRows } from '../rows/prompt-rows.js';

/** Rows that are installed at once, as a transfer's are. */
const INSTALL_ROWS = 512;
const DECODE_LIMIT_MS = 600_000;
/** Tokens of an answer that are compared. */
export const ANSWER_TOKENS = 24;

export interface DecoderOptions {
  /** Longest prompt. */
  readonly promptTokens: number;
  readonly chunkTokens: number;
  readonly threads: number;
  readonly flashAttention: boolean;
}

/** What the decoder makes of one side's rows. */
export interface Decoded {
  /** Of the first token of the answer, one a vocabulary entry. */
  readonly logits: Float32Array;
  /** Greedy, with the token that ended it. */
  readonly answer: readonly number[];
}

/** The decoder of a hand-off: installs rows, evaluates the prompt's last token, decodes. */
export class Decoder {
  readonly #engine: Engine;
  readonly #stopTokens: number[];

  private constructor(engine: Engine, stopTokens: number[]) {
    this.#engine = engine;
    this.#stopTokens = stopTokens;
  }

  /** @throws MuserError OUT_OF_MEMORY and others of the engine. The model stays the caller's. */
  static async create(model: Model, options: DecoderOptions): Promise<Decoder> {
    const { eosToken, eotToken } = model.info;
    try {
      const engine = await Engine.create(model, {
        maxSequences: 1,
        contextTokens: options.promptTokens + ANSWER_TOKENS,
        chunkTokens: options.chunkTokens,
        flashAttention: options.flashAttention,
        kvType: 'f16',
        threads: options.threads,
      });
      return new Decoder(
        engine,
        [eosToken, eotToken].filter((token) => token !== null),
      );
    } catch (error) {
      throw fromEngineError(error);
    }
  }

  /** @param rows of all tokens but the last */
  async decode(tokens: Uint32Array, rows: PromptRows, signal: AbortSignal): Promise<Decoded> {
    const sequence = this.#engine.open(tokens.length + ANSWER_TOKENS);
    try {
      return await withinLimit({ signal, limitMs: DECODE_LIMIT_MS, what: 'the answer of the decoder' }, (stop) =>
        this.#decode(sequence, tokens, rows, stop),
      );
    } catch (error) {
      throw fromEngineError(error);
    } finally {
      await sequence.dispose();
    }
  }

  close(): Promise<void> {
    return this.#engine.close();
  }

  async #decode(sequence: Sequence, tokens: Uint32Array, rows: PromptRows, signal: AbortSignal): Promise<Decoded> {
    await install(sequence, rows, signal);
    await sequence.evaluate(tokens.subarray(-1), { signal });
    const logits = sequence.lastLogits();
    const first = indexOfGreatest(logits);
    const answer = [first];
    if (!this.#stopTokens.includes(first)) answer.push(...(await this.#continue(sequence, first, signal)));
    return { logits, answer };
  }

  async #continue(sequence: Sequence, first: number, signal: AbortSignal): Promise<number[]> {
    const tokens: number[] = [];
    await sequence.generate(
      { ...GREEDY, prompt: Uint32Array.of(first), maxTokens: ANSWER_TOKENS - 1, stopTokens: this.#stopTokens, signal },
      (output) => tokens.push(...output.tokens),
    );
    return tokens;
  }
}

/** As ingest does: chunk by chunk, window rows only where the window still reaches at the end. */
async function install(sequence: Sequence, rows: PromptRows, signal: AbortSignal): Promise<void> {
  const { geometry, count, wireType } = rows;
  for (let start = 0; start < count; start += INSTALL_ROWS) {
    signal.throwIfAborted();
    const end = Math.min(start + INSTALL_ROWS, count);
    const windowStart = Math.min(end, Math.max(start, count - geometry.windowTokens));
    const stage = sequence.stage(start, end, windowStart);
    try {
      for (const [layer, layerKind] of geometry.layers.entries()) {
        const from = layerKind === 'window' ? windowStart : start;
        if (from === end) continue;
        for (const kind of ['k', 'v'] as const) {
          stage.put(layer, kind, from, end - from, wireType, rows.bytes(layer, kind, { start: from, end }));
        }
      }
      await sequence.install(stage);
    } finally {
      stage.dispose();
    }
  }
}

export function indexOfGreatest(values: Float32Array): number {
  let greatest = 0;
  for (let index = 1; index < values.length; index += 1) {
    if ((values[index] ?? -Infinity) > (values[greatest] ?? -Infinity)) greatest = index;
  }
  return greatest;
}
