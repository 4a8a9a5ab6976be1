import { figuresOf, rowDistances } from './figures.js';
import { type Finding, testHypotheses } from './hypotheses.js';
import { agrees, type Scene } from './scene.js';

/** A row alone has more noise than all together. */
const BAD_ROW = 2;
/** Beyond this, rows have nothing in common: two random vectors have a distance of 1.4. */
const UNRELATED = 1;
/** A step nearer to the beginning than this says nothing. */
const LEAST_EDGE = 8;
/** Rows after a step that are so much worse are another matter than noise, however small they are. */
const CLEAR_STEP = 4;
/** Rows that are wrong beyond measure must not hide where they begin. */
const RATIO_CAP = 4;

/**
 * The likely cause of a difference in the first layer that has one. What can be put right is tried first; otherwise the
 * place of the wrong rows tells: the first token attends to itself alone, so neither position, window nor attention is in
 * its rows, only weights.
 */
export function diagnose(scene: Scene): Finding {
  return testHypotheses(scene) ?? (scene.layer === 0 ? firstLayer(scene) : laterLayer(scene));
}

function firstLayer(scene: Scene): Finding {
  const ratios = rowRatios(scene);
  const vAgrees = agrees(scene, 'v');
  if (!vAgrees) return weights(scene, 'V of the first layer comes from embeddings and weights alone');
  if (scene.firstToken === 0 && (ratios[0] ?? 0) <= BAD_ROW && scene.rotates) {
    const detail = 'K differs after the first token and V does not: another form of RoPE (scaling, partial rotation)';
    return { cause: 'rope', detail };
  }
  return weights(scene, 'K of the first layer differs and its V does not');
}

function laterLayer(scene: Scene): Finding {
  const ratios = rowRatios(scene);
  const { layer, firstToken } = scene;
  if (firstToken === 0 && (ratios[0] ?? 0) > BAD_ROW) {
    return weights(scene, `the first token's rows differ: weights of layer ${layer - 1} or ${layer}`);
  }
  const { windowTokens } = scene.geometry;
  if (scene.producerWindow !== windowTokens) {
    const detail = `another sliding window: the producer's model has ${scene.producerWindow} tokens, the reference's ${windowTokens}`;
    return { cause: 'window', detail };
  }
  const edge = stepOf(ratios);
  if (edge !== null) {
    const token = firstToken + edge;
    const detail = `rows agree up to about token ${token} and not from there on: another sliding window in an earlier layer (the reference's has ${windowTokens} tokens)`;
    return { cause: 'window', detail };
  }
  if (firstToken > 0) {
    return { cause: 'unknown', detail: `rows from token ${firstToken} on differ, and no known change puts them right` };
  }
  const detail = `the first token's rows agree and later ones do not, so the weights are right: RoPE of the queries, scale or heads of the attention, or which layers are global, in layer ${layer - 1}`;
  return { cause: 'attention', detail };
}

function weights(scene: Scene, why: string): Finding {
  const distances = (['k', 'v'] as const).map(
    (kind) => figuresOf(scene.producer[kind], scene.reference[kind]).distance,
  );
  const related = Math.max(...distances) < UNRELATED;
  const what = related ? 'similar weights, such as a coarser quantization or another fine-tuning' : 'other weights';
  return { cause: 'weights', detail: `${what}: ${why}` };
}

/** For each row, how often its distance has the limit in it; of K and V the greater. */
function rowRatios({ producer, reference, rowLength, limits }: Scene): Float64Array {
  const k = rowDistances(producer.k, reference.k, rowLength);
  const v = rowDistances(producer.v, reference.v, rowLength);
  return k.map((distance, row) => Math.max(distance / limits.k, (v[row] ?? 0) / limits.v));
}

/** Row from which on the rows are bad, when those before are good: where one step fits the ratios best. */
function stepOf(ratios: Float64Array): number | null {
  const values = ratios.map((ratio) => Math.min(ratio, RATIO_CAP));
  const total = values.reduce((sum, value) => sum + value, 0);
  let before = 0;
  let best = { gain: 0, row: 0, before: 0, after: 0 };
  for (let row = 1; row < values.length; row += 1) {
    before += values[row - 1] ?? 0;
    const means = { before: before / row, after: (total - before) / (values.length - row) };
    const gain = row * (values.length - row) * (means.after - means.before) ** 2;
    if (gain > best.gain) best = { gain, row, ...means };
  }
  const isClear = best.after > CLEAR_STEP * best.before || (best.after > 1 && best.after > 2 * best.before);
  return best.row >= LEAST_EDGE && best.before <= 1 && isClear ? best.row : null;
}
