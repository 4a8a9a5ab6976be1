/** The same ordinary tokens for the same length: what a prompt says does not matter to its speed. */
export function randomTokens(count: number, vocabularySize: number): Int32Array {
  let state = 0x9e3779b9;
  return Int32Array.from({ length: count }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return 300 + (state % (vocabularySize - 300));
  });
}
