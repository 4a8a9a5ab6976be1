import type { ErrorCode } from '@muser/protocol';
import type { Answer } from '../test/support/chat.js';
import { outcomeText, type Cell, type Outcome, type Way } from './cells.js';
import type { Question } from './questions.js';

/**
 * Compares what came with what is right.
 *
 * @param answer null: none, because the decoder is gone
 * @throws Error with every difference
 */
export function judge(cell: Cell, question: Question, answer: Answer | null): Outcome {
  const outcome = answer === null ? { way: 'lost' as const, failures: [] } : outcomeOf(answer);
  const problems =
    answer === null ? [] : [...wrongText(cell, question, answer), ...wrongReport(question, answer, outcome)];
  const allowed = cell.expect.map(outcomeText);
  if (!allowed.includes(outcomeText(outcome))) {
    const message = answer?.muser.fallback?.message ?? 'no fallback';
    problems.push(`"${outcomeText(outcome)}" (${message}) instead of "${allowed.join('" or "')}"`);
  }
  if (problems.length > 0) throw new Error(problems.join('; '));
  return outcome;
}

/** vLLM computes with other kernels: its words may differ a little, what the document says may not. */
function wrongText({ backend }: Cell, { local, value }: Question, { text }: Answer): string[] {
  if (!text.includes(value)) return [`the answer "${text}" does not hold "${value}"`];
  return backend === 'llama' && text !== local.text ? [`the answer is "${text}", not "${local.text}"`] : [];
}

function wrongReport({ local }: Question, { muser }: Answer, { failures }: Outcome): string[] {
  const problems = [];
  if (muser.promptTokens !== local.muser.promptTokens) problems.push(`${muser.promptTokens} prompt tokens`);
  if (muser.cachedTokens !== 0)
    problems.push(`${muser.cachedTokens} tokens were in the cache, so the cell shows nothing`);
  const code = muser.fallback?.code ?? null;
  if (code !== null && code !== failures.at(-1)) problems.push(`fallback ${code} after ${failures.join(', ')}`);
  return problems;
}

function outcomeOf({ muser }: Answer): Outcome {
  const { attempts, fallback, prefill } = muser;
  const codes = attempts.length > 0 ? attempts.map(({ code }) => code) : [fallback?.code ?? null];
  return { way: prefill as Way, failures: codes.filter((code) => code !== null) as ErrorCode[] };
}
