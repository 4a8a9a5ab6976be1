/**
 * What can be wrong with rows that are right otherwise. Each hypothesis is tried on the rows themselves: it holds when the
 * producer's rows, put right accordingly, are the reference's.
 */
import type { Cause } from './record.js';
import { figuresOf } from './figures.js';
import { frequencies, likelyBase, rotated } from '../rows/rotation.js';
import { agrees, putsRight, type Scene } from './scene.js';

export interface Finding {
  readonly cause: Cause;
  readonly detail: string;
}

type Hypothesis = (scene: Scene) => Finding | null;

/** Rows that may have been moved, each way. */
const GREATEST_SHIFT = 4;
const SHIFTS = Array.from({ length: GREATEST_SHIFT }, (_, index) => [index + 1, -index - 1]).flat();

/** The first that holds; null when none does. */
export function testHypotheses(scene: Scene): Finding | null {
  for (const hypothesis of HYPOTHESES) {
    const finding = hypothesis(scene);
    if (finding !== null) return finding;
  }
  return null;
}

const exchanged: Hypothesis = (scene) => {
  const { k, v } = scene.producer;
  if (!putsRight(scene, 'k', v) || !putsRight(scene, 'v', k)) return null;
  return { cause: 'exchanged', detail: 'K and V are exchanged: each matches when it is taken for the other' };
};

const permuted: Hypothesis = (scene) => {
  const { headDimension } = scene.form;
  const half = headDimension / 2;
  const orders = [
    { from: 'interleaved', index: (element: number) => (element < half ? 2 * element : 2 * (element - half) + 1) },
    { from: 'split in halves twice', index: (element: number) => (element % 2) * half + Math.floor(element / 2) },
  ];
  for (const { from, index } of orders) {
    const ordered = mapped(scene.producer.k, headDimension, index);
    if (!putsRight(scene, 'k', ordered)) continue;
    const detail = `the elements of each head of K are in another order: they match when they are taken for ${from} and put in half-split order`;
    return { cause: 'k-permutation', detail };
  }
  return null;
};

const headOrder: Hypothesis = (scene) => {
  const orders = { k: orderOfHeads(scene, 'k'), v: orderOfHeads(scene, 'v') };
  const wrong = (['k', 'v'] as const).filter((kind) => orders[kind]?.some((head, index) => head !== index) === true);
  if (wrong.length === 0 || orders.k === null || orders.v === null) return null;
  const kinds = wrong.map((kind) => `${kind.toUpperCase()} has the order ${orders[kind]?.join(', ') ?? ''}`).join('; ');
  return { cause: 'head-order', detail: `the KV heads are in another order: ${kinds}` };
};

/** Rows that belong to another token, and were rotated for its position or for the one that they have now. */
const shifted: Hypothesis = (scene) => {
  const { rowLength, reference, producer } = scene;
  const count = producer.v.length / rowLength;
  for (const shift of SHIFTS) {
    if (count <= Math.abs(shift)) continue;
    const part = (rows: Float32Array, by: number): Float32Array =>
      rows.subarray(Math.max(0, by) * rowLength, (count + Math.min(0, by)) * rowLength);
    if (!putsRight(scene, 'v', part(producer.v, shift), part(reference.v, -shift))) continue;
    const k = part(producer.k, shift);
    const turned = turn(scene, k, () => -shift);
    const target = part(reference.k, -shift);
    if (!putsRight(scene, 'k', k, target) && !putsRight(scene, 'k', turned, target)) continue;
    const detail = `rows are moved by ${shift}: row i + ${shift} of the producer is row i of the reference`;
    return { cause: 'position-shift', detail: detail.replace('+ -', '- ') };
  }
  return null;
};

const positions: Hypothesis = (scene) => {
  if (!scene.rotates || !agrees(scene, 'v')) return null;
  for (const shift of SHIFTS) {
    if (
      !putsRight(
        scene,
        'k',
        turn(scene, scene.producer.k, () => -shift),
      )
    )
      continue;
    const detail = `keys are rotated for positions that are ${Math.abs(shift)} too ${shift > 0 ? 'great' : 'small'}`;
    return { cause: 'position-shift', detail };
  }
  return null;
};

const rotation: Hypothesis = (scene) => {
  if (!agrees(scene, 'v')) return null;
  const { rotates, geometry, producer, reference, form, firstToken } = scene;
  if (!rotates) {
    const unturned = turn(scene, producer.k, (position) => -position);
    return putsRight(scene, 'k', unturned)
      ? { cause: 'rope', detail: 'keys are rotated in a layer that has no RoPE in the reference' }
      : null;
  }
  if (
    putsRight(
      scene,
      'k',
      turn(scene, producer.k, (position) => position),
    )
  ) {
    return { cause: 'rope', detail: 'keys are not rotated in a layer that has RoPE in the reference' };
  }
  const base = likelyBase(producer.k, reference.k, form, firstToken, geometry.ropeBase);
  const own = frequencies(base, form.headDimension);
  const correct = frequencies(geometry.ropeBase, form.headDimension);
  const corrected = rotated(
    producer.k,
    form,
    firstToken,
    (position, pair) => position * ((correct[pair] ?? 0) - (own[pair] ?? 0)),
  );
  if (!putsRight(scene, 'k', corrected)) return null;
  const detail = `another RoPE base: keys match when they are taken for rotated by base ${Number(base.toPrecision(3))}; the reference has ${geometry.ropeBase}`;
  return { cause: 'rope-base', detail };
};

const HYPOTHESES: readonly Hypothesis[] = [exchanged, permuted, headOrder, shifted, positions, rotation];

/** K rotated by some positions more; as it is where the layer has no RoPE. */
function turn(scene: Scene, k: Float32Array, by: (position: number) => number): Float32Array {
  const { form, geometry, firstToken } = scene;
  const turns = frequencies(geometry.ropeBase, form.headDimension);
  return rotated(k, form, firstToken, (position, pair) => by(position) * (turns[pair] ?? 0));
}

/** Every head's elements in another order: element e is taken from `index(e)`. */
function mapped(rows: Float32Array, headDimension: number, index: (element: number) => number): Float32Array {
  const order = Array.from({ length: headDimension }, (_, element) => index(element));
  return Float32Array.from(rows, (_, at) => {
    const element = at % headDimension;
    return rows[at - element + (order[element] ?? 0)] ?? NaN;
  });
}

/** Which head of the producer each head of the reference is; null when they do not match one to one. */
function orderOfHeads(scene: Scene, kind: 'k' | 'v'): number[] | null {
  const { heads } = scene.form;
  const limit = scene.limits[kind];
  const own = Array.from({ length: heads }, (_, head) => headOf(scene, scene.producer[kind], head));
  const order = Array.from({ length: heads }, (_, head) => {
    const wanted = headOf(scene, scene.reference[kind], head);
    return own.findIndex((rows) => figuresOf(rows, wanted).distance <= limit);
  });
  return new Set(order).size === heads && !order.includes(-1) ? order : null;
}

function headOf({ rowLength, form }: Scene, rows: Float32Array, head: number): Float32Array {
  const { headDimension } = form;
  return Float32Array.from({ length: (rows.length / rowLength) * headDimension }, (_, index) => {
    const row = Math.floor(index / headDimension);
    return rows[row * rowLength + head * headDimension + (index % headDimension)] ?? NaN;
  });
}
