import { MuserError } from '@muser/protocol';

import type { PrefillBackend, PrefillTask } from './backend.js';

type Offer = Pick<PrefillBackend, 'model' | 'limits'>;

/** @throws MuserError INVALID_REQUEST, PROMPT_TOO_LONG */
export function checkPrompt(tokens: Uint32Array, { model, limits }: Offer): void {
  if (tokens.length < 2) throw new MuserError('INVALID_REQUEST', 'a prompt to prefill has at least two tokens');
  if (tokens.length > limits.maxPromptTokens) {
    const message = `the prompt has ${tokens.length} tokens, the limit is ${limits.maxPromptTokens}`;
    throw new MuserError('PROMPT_TOO_LONG', message, {
      details: { promptTokens: tokens.length, limit: limits.maxPromptTokens },
    });
  }
  const { vocabularySize } = model.geometry;
  const position = tokens.findIndex((token) => token >= vocabularySize);
  if (position >= 0) {
    throw new MuserError('INVALID_REQUEST', `the token at position ${position} is not in the vocabulary`, {
      details: { position, vocabularySize },
    });
  }
}

/**
 * What every backend refuses before it computes.
 * @throws MuserError INVALID_REQUEST, PROMPT_TOO_LONG
 */
export function checkTask(task: PrefillTask, offer: Offer): void {
  const { tokens, heldTokens, chunkTokens, wireType } = task;
  checkPrompt(tokens, offer);
  if (!Number.isInteger(heldTokens) || heldTokens < 0 || heldTokens >= tokens.length - 1) {
    throw new MuserError('INVALID_REQUEST', `${heldTokens} of ${tokens.length - 1} rows held leaves none to send`);
  }
  if (!Number.isInteger(chunkTokens) || chunkTokens < 0) {
    throw new MuserError('INVALID_REQUEST', `a chunk of ${chunkTokens} tokens is not possible`);
  }
  if (!offer.limits.wireTypes.includes(wireType)) {
    throw new MuserError('INVALID_REQUEST', `rows of type ${wireType} are not offered`);
  }
}
