/** The middle of the sorted values (mean of the two middle ones when their number is even). */
export function median(values: number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = Math.floor(sorted.length / 2);
  const [low, high] = [sorted[Math.floor((sorted.length - 1) / 2)], sorted[middle]];
  if (low === undefined || high === undefined) throw new RangeError('median of nothing');
  return (low + high) / 2;
}

/** Rounds to three significant figures: more would pretend to a precision that a shared machine does not have. */
export const figure = (value: number): number => Number(value.toPrecision(3));
