import type { CompletionResult } from '../requests/completion.js';

/** What all bodies of one answer share. */
export interface AnswerHead {
  readonly id: string;
  /** Unix seconds. */
  readonly created: number;
  readonly model: string;
}

/** The body of an answer that is not streamed. */
export function completionBody(head: AnswerHead, text: string, result: CompletionResult): object {
  return {
    id: head.id,
    object: 'chat.completion',
    created: head.created,
    model: head.model,
    choices: [
      {
        index: 0,
        message: { role: 'assistant', content: text, refusal: null },
        logprobs: null,
        finish_reason: result.finishReason,
      },
    ],
    usage: usageOf(result),
    muser: result.report,
  };
}

/** Makes the chunks of a streamed answer. With `includeUsage` every chunk but the last has `usage: null`, as OpenAI's. */
export function chunkMaker(head: AnswerHead, includeUsage: boolean) {
  const chunk = (choices: object[], more: object = {}): object => ({
    id: head.id,
    object: 'chat.completion.chunk',
    created: head.created,
    model: head.model,
    choices,
    ...(includeUsage ? { usage: null } : {}),
    ...more,
  });
  const choice = (delta: object, finishReason: string | null): object => ({
    index: 0,
    delta,
    logprobs: null,
    finish_reason: finishReason,
  });
  return {
    role: () => chunk([choice({ role: 'assistant', content: '', refusal: null }, null)]),
    content: (text: string) => chunk([choice({ content: text }, null)]),
    finish: (result: CompletionResult) => chunk([choice({}, result.finishReason)], { muser: result.report }),
    usage: (result: CompletionResult) => chunk([], { usage: usageOf(result) }),
  };
}

function usageOf({ promptTokens, completionTokens, report }: CompletionResult): object {
  return {
    prompt_tokens: promptTokens,
    completion_tokens: completionTokens,
    total_tokens: promptTokens + completionTokens,
    prompt_tokens_details: { cached_tokens: report.cachedTokens },
  };
}
