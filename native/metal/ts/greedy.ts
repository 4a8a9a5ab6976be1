import type { GenerateOptions } from './sequence.js';

/** Always the most likely token; only `maxTokens` ends the answer. For whatever compares two ways to the same answer. */
export const GREEDY: Readonly<Omit<GenerateOptions, 'prompt' | 'maxTokens'>> = {
  temperature: 0,
  topK: 0,
  topP: 1,
  minP: 0,
  repeatPenalty: 1,
  frequencyPenalty: 0,
  presencePenalty: 0,
  penaltyLastN: 0,
  seed: 1,
  logitBias: [],
  stopTokens: [],
  stopStrings: [],
};
