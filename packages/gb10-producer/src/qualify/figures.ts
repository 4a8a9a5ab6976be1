/** How far two lists of numbers are from one another. */
export interface Figures {
  /** Of the angle between them as vectors: 1 is the same direction. */
  readonly cosine: number;
  /** Norm of the difference, divided by the norm of the second. */
  readonly distance: number;
  /** Greatest difference of two elements. */
  readonly maxDifference: number;
  /** The same in units of the second's root mean square, so that it means the same for every model. */
  readonly peak: number;
}

/** Rows of zeros make figures large, but not infinite: a record has no form for that. */
const LEAST_SQUARES = 1e-30;

/** @throws RangeError when the lists have different lengths */
export function figuresOf(a: Float32Array, b: Float32Array): Figures {
  if (a.length !== b.length) throw new RangeError(`${a.length} values cannot be compared with ${b.length}`);
  let products = 0;
  let squaresOfA = 0;
  let squaresOfB = 0;
  let squares = 0;
  let maxDifference = 0;
  for (let index = 0; index < a.length; index += 1) {
    const x = a[index] ?? 0;
    const y = b[index] ?? 0;
    const difference = x - y;
    products += x * y;
    squaresOfA += x * x;
    squaresOfB += y * y;
    squares += difference * difference;
    maxDifference = Math.max(maxDifference, Math.abs(difference));
  }
  const norms = Math.sqrt(squaresOfA * squaresOfB);
  return {
    cosine: norms === 0 ? Number(squares === 0) : products / norms,
    distance: squares === 0 ? 0 : Math.sqrt(squares / Math.max(squaresOfB, LEAST_SQUARES)),
    maxDifference,
    peak: maxDifference === 0 ? 0 : maxDifference / Math.sqrt(Math.max(squaresOfB, LEAST_SQUARES) / b.length),
  };
}

/** The worse of two in every respect. */
export function worseOf(a: Figures, b: Figures): Figures {
  return {
    cosine: Math.min(a.cosine, b.cosine),
    distance: Math.max(a.distance, b.distance),
    maxDifference: Math.max(a.maxDifference, b.maxDifference),
    peak: Math.max(a.peak, b.peak),
  };
}

/** Distance of each row: `rowLength` numbers each. */
export function rowDistances(a: Float32Array, b: Float32Array, rowLength: number): Float64Array {
  return Float64Array.from({ length: a.length / rowLength }, (_, row) => {
    const range = [row * rowLength, (row + 1) * rowLength] as const;
    return figuresOf(a.subarray(...range), b.subarray(...range)).distance;
  });
}
