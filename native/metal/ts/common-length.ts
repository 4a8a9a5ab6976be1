/** How many tokens two texts have in common from their beginning. */
export function commonLength(a: Uint32Array, b: Uint32Array): number {
  const limit = Math.min(a.length, b.length);
  let length = 0;
  while (length < limit && a[length] === b[length]) length += 1;
  return length;
}
