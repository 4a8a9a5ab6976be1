/** RoPE on rows in wire form: heads in half-split order, so that elements j and j + D/2 are one pair. */

/** What a row's elements are: `heads` heads of `headDimension` each. */
export interface RowForm {
  readonly heads: number;
  readonly headDimension: number;
}

/** Turns of each pair per position: base^(-2j/D), j from 0 to D/2 - 1. */
export function frequencies(base: number, headDimension: number): Float64Array {
  return Float64Array.from({ length: headDimension / 2 }, (_, pair) => base ** ((-2 * pair) / headDimension));
}

/** Rotates each row's pairs by `angle(position, pair)` radians. The first row has position `firstPosition`. */
export function rotated(
  rows: Float32Array,
  { heads, headDimension }: RowForm,
  firstPosition: number,
  angle: (position: number, pair: number) => number,
): Float32Array {
  const result = new Float32Array(rows.length);
  const half = headDimension / 2;
  const rowLength = heads * headDimension;
  for (let row = 0; row < rows.length / rowLength; row += 1) {
    for (let pair = 0; pair < half; pair += 1) {
      const turn = angle(firstPosition + row, pair);
      const cosine = Math.cos(turn);
      const sine = Math.sin(turn);
      for (let head = 0; head < heads; head += 1) {
        const at = row * rowLength + head * headDimension + pair;
        const x = rows[at] ?? 0;
        const y = rows[at + half] ?? 0;
        result[at] = x * cosine - y * sine;
        result[at + half] = x * sine + y * cosine;
      }
    }
  }
  return result;
}

/** Bases that are looked for; published models lie between. */
const LEAST_BASE = 100;
const GREATEST_BASE = 1e9;
const GRID_STEP = 0.02;
/** Far positions tell bases apart that near ones cannot, but only near the right one: so the search goes from near to far. */
const SEARCH_ROWS = 48;
const REFINEMENTS = [
  { rows: 192, step: 0.004 },
  { rows: 512, step: 0.0008 },
  { rows: 512, step: 0.0001 },
];
const REFINEMENT_STEPS = 12;

/**
 * The RoPE base that `rows` were most likely rotated by, when `reference` has the same keys rotated by `referenceBase`.
 * Both begin at position `firstPosition`.
 */
export function likelyBase(
  rows: Float32Array,
  reference: Float32Array,
  form: RowForm,
  firstPosition: number,
  referenceBase: number,
): number {
  const rowLength = form.heads * form.headDimension;
  const correct = frequencies(referenceBase, form.headDimension);
  const distance = (logarithm: number, count: number): number => {
    const own = frequencies(Math.exp(logarithm), form.headDimension);
    const part = rows.subarray(0, count * rowLength);
    const turned = rotated(part, form, firstPosition, (position, pair) => {
      return position * ((correct[pair] ?? 0) - (own[pair] ?? 0));
    });
    let squares = 0;
    for (let index = 0; index < turned.length; index += 1) {
      squares += ((turned[index] ?? 0) - (reference[index] ?? 0)) ** 2;
    }
    return squares;
  };
  const grid = Math.ceil(Math.log(GREATEST_BASE / LEAST_BASE) / GRID_STEP);
  const candidates = Array.from({ length: grid + 1 }, (_, index) => Math.log(LEAST_BASE) + index * GRID_STEP);
  let best = leastBy(candidates, (candidate) => distance(candidate, SEARCH_ROWS));
  for (const { rows: count, step } of REFINEMENTS) {
    const around = Array.from(
      { length: 2 * REFINEMENT_STEPS + 1 },
      (_, index) => best + (index - REFINEMENT_STEPS) * step,
    );
    best = leastBy(around, (candidate) => distance(candidate, count));
  }
  return Math.exp(best);
}

function leastBy(candidates: readonly number[], cost: (candidate: number) => number): number {
  let least = Infinity;
  let best = NaN;
  for (const candidate of candidates) {
    const found = cost(candidate);
    if (found >= least) continue;
    least = found;
    best = candidate;
  }
  return best;
}
