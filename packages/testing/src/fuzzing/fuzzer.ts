import { Random } from '../random.js';
import { mutated } from './mutations.js';
import { TargetProcess, type TargetCommand } from './target-process.js';

export interface FuzzOptions {
  target: TargetCommand;
  /** Inputs to begin with. All of them are run first, as they are. */
  corpus: readonly Uint8Array[];
  /** The same seed, corpus and code try the same inputs. */
  seed: number;
  durationMs: number;
  maxInputBytes: number;
}

export interface FuzzResult {
  executions: number;
  /** Inputs that reached code that none before had reached, in order. */
  kept: Buffer[];
  /** The first input that failed, and how. */
  failure: { input: Buffer; message: string } | null;
}

/** Inputs are sent in batches, so that neither process waits for the other. */
const BATCH = 64;
/** Every second input comes from one of the last ones that found something. */
const RECENT = 16;

/**
 * Tries inputs on a target until the time is over or one fails. New inputs are made from those that reached new code, so
 * that what gets far in a decoder is changed further.
 */
export async function fuzz(options: FuzzOptions): Promise<FuzzResult> {
  const random = new Random(options.seed);
  const result: FuzzResult = { executions: 0, kept: [], failure: null };
  const target = await TargetProcess.start(options.target);
  const end = performance.now() + options.durationMs;
  const attempt = async (inputs: Buffer[]): Promise<void> => {
    const outcomes = await target.run(inputs);
    outcomes.forEach((outcome, index) => {
      const input = inputs[index] ?? Buffer.alloc(0);
      result.executions += 1;
      if (outcome.kind === 'new') result.kept.push(input);
      if (outcome.kind === 'failed') result.failure = { input, message: outcome.message };
    });
  };
  try {
    const corpus = options.corpus.map((bytes) => Buffer.from(bytes));
    for (let at = 0; at < corpus.length && result.failure === null; at += BATCH) {
      await attempt(corpus.slice(at, at + BATCH));
    }
    while (result.failure === null && performance.now() < end) {
      const pool = [...corpus, ...result.kept];
      await attempt(Array.from({ length: BATCH }, () => nextInput(random, pool, options.maxInputBytes)));
    }
  } finally {
    await target.stop();
  }
  return result;
}

function nextInput(random: Random, pool: readonly Buffer[], maxBytes: number): Buffer {
  if (pool.length === 0)
    return Buffer.from(Array.from({ length: random.integer(0, 64) }, () => random.integer(0, 255)));
  const recent = random.integer(0, 1) === 0 ? pool.slice(-RECENT) : pool;
  return mutated(random, random.pick(recent), pool).subarray(0, maxBytes);
}
