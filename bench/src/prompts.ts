/** Greedy decoding that never stops by itself, so that every run decodes the same number of tokens. */
export const greedy = {
  temperature: 0,
  topK: 0,
  topP: 1,
  minP: 0,
  repeatPenalty: 1,
  frequencyPenalty: 0,
  presencePenalty: 0,
  penaltyLastN: 0,
  seed: 1,
  logitBias: [] as [number, number][],
  stopTokens: [] as number[],
  stopStrings: [] as string[],
};

/** The same ordinary tokens for the same length: what a prompt says does not matter to its speed. */
export function randomTokens(count: number, vocabularySize: number): Int32Array {
  let state = 0x9e3779b9;
  return Int32Array.from({ length: count }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return 300 + (state % (vocabularySize - 300));
  });
}
