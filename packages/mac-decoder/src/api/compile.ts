import { randomInt } from 'node:crypto';
import { MuserError } from '@muser/protocol';
import { buildPrompt } from '../chat/prompt.js';
import type { ChatTemplate } from '../chat/template.js';
import type { PrefillMode } from '../config.js';
import type { DecoderEngine } from '../engine/decoder-engine.js';
import { engineCall } from '../errors/engine-errors.js';
import { invalidParameter } from '../errors/http-errors.js';
import type { CompletionRequest, Sampling } from '../requests/completion.js';
import type { Timeline } from '../requests/timeline.js';
import type { ChatRequest } from './schema.js';

const SEEDS = 2 ** 32;

export interface CompileOptions {
  readonly engine: DecoderEngine;
  readonly template: ChatTemplate;
  /** Way of requests that name none. */
  readonly prefill: PrefillMode;
  /** Longest answer of requests that name none, in tokens. */
  readonly answerTokens: number;
}

/**
 * Makes a request that can run of one that a client sent: defaults, prompt tokens, limits.
 * @throws MuserError INVALID_REQUEST, PROMPT_TOO_LONG, or while other prompts are tokenized QUEUE_FULL, DEADLINE_EXCEEDED,
 * CANCELLED, UNAVAILABLE
 */
export async function compileRequest(
  chat: ChatRequest,
  id: string,
  timeline: Timeline,
  options: CompileOptions,
  signal: AbortSignal,
): Promise<CompletionRequest> {
  const { engine, template } = options;
  const tokens = await engineCall(() =>
    buildPrompt(engine.tokenizer.of(signal), template, chat.messages, engine.endTokens),
  );
  timeline.mark('tokenized');
  if (tokens.length === 0) throw invalidParameter('messages', 'the prompt is empty');
  const room = engine.contextTokens - tokens.length;
  if (room < 1) {
    throw new MuserError(
      'PROMPT_TOO_LONG',
      `The prompt has ${tokens.length} tokens; with an answer, the context has room for ${engine.contextTokens - 1}.`,
      { details: { param: 'messages', promptTokens: tokens.length, contextTokens: engine.contextTokens } },
    );
  }
  const wanted = chat.max_completion_tokens ?? chat.max_tokens ?? options.answerTokens;
  return {
    id,
    tokens,
    maxTokens: Math.min(wanted, room),
    mode: chat.muser?.prefill ?? options.prefill,
    sampling: samplingOf(chat, engine.geometry.vocabularySize),
    stopStrings: [...template.stopStrings, ...chat.stop],
    timeline,
  };
}

function samplingOf(chat: ChatRequest, vocabularySize: number): Sampling {
  const outside = chat.logit_bias.find(([token]) => token >= vocabularySize);
  if (outside !== undefined) {
    throw invalidParameter('logit_bias', `token ${outside[0]} is outside the vocabulary of ${vocabularySize}`);
  }
  return {
    temperature: chat.temperature ?? 1,
    topK: chat.top_k ?? 0,
    topP: chat.top_p ?? 1,
    minP: chat.min_p ?? 0,
    repeatPenalty: chat.repeat_penalty ?? 1,
    frequencyPenalty: chat.frequency_penalty ?? 0,
    presencePenalty: chat.presence_penalty ?? 0,
    seed: chat.seed === undefined ? randomInt(SEEDS) : ((chat.seed % SEEDS) + SEEDS) % SEEDS,
    logitBias: chat.logit_bias,
  };
}
