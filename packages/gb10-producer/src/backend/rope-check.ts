import { type Geometry, MuserError } from '@muser/protocol';

import { type Prefilled, prefillRows, type PromptRows } from '../rows/prompt-rows.js';
import { frequencies, rotated } from '../rows/rotation.js';
import type { PrefillBackend } from './backend.js';

/** As many positions as tell one RoPE base from another; fewer than a window of any real model. */
const TOKENS = 97;
/** Root of the mean square, relative. bf16 stays below 0.03; another base, order or part of a head is at 0.3 and more. */
const TOLERANCE = 0.1;
/** One small prefill by an engine that has just done one of its own. */
const LIMIT_MS = 120_000;
/** Tokens to try, as parts of the vocabulary: one may be a place for an image, which vLLM takes for what it is. */
const TRIED = [1 / 2, 1 / 3, 2 / 3, 1 / 5];

/**
 * Prefills one token over and over. Whatever a layer does, every position then has the same K but for RoPE, so the rows
 * show by themselves whether K lies in half-split order and turns as the geometry says. Weights, configuration and
 * names are not asked.
 *
 * @throws MuserError MODEL_UNSUPPORTED with the first layer that does not, or why the prefill failed
 */
export async function checkRope(backend: PrefillBackend, signal: AbortSignal): Promise<void> {
  const { geometry } = backend.model;
  const { rows } = await prefillOneToken(backend, signal);
  for (const [layer, kind] of geometry.layers.entries()) {
    const turns = geometry.ropeLayers === 'all' || kind === 'window';
    const distance = distanceFromTurned(rows, layer, turns ? geometry.ropeBase : null);
    if (distance <= TOLERANCE) continue;
    const what = turns
      ? `does not turn in half-split order by base ${geometry.ropeBase}`
      : 'differs between positions, although it should not turn';
    throw new MuserError(
      'MODEL_UNSUPPORTED',
      `K of layer ${layer} ${what}: it is off by ${distance.toFixed(2)}, so this engine has another form of RoPE`,
    );
  }
}

/** Takes another token when the engine refuses one. */
async function prefillOneToken(backend: PrefillBackend, signal: AbortSignal): Promise<Prefilled> {
  const { model, limits } = backend;
  const tokens = new Uint32Array(Math.min(TOKENS, limits.maxPromptTokens));
  let refusal: unknown;
  for (const part of TRIED) {
    tokens.fill(Math.floor(part * model.geometry.vocabularySize));
    try {
      return await prefillRows(backend, tokens, { cacheScope: 'rope-check', signal, limitMs: LIMIT_MS });
    } catch (error) {
      if (!(error instanceof MuserError) || error.code !== 'INVALID_REQUEST') throw error;
      refusal = error;
    }
  }
  throw refusal;
}

/** How far a layer's K is from its own first row, turned on by each row's distance from it. */
function distanceFromTurned(rows: PromptRows, layer: number, ropeBase: number | null): number {
  const { kvHeads, headDimension }: Geometry = rows.geometry;
  const found = rows.values(layer, 'k', rows.spanOf(layer));
  const width = kvHeads * headDimension;
  const first = new Float32Array(found.length);
  for (let at = 0; at < found.length; at += width) first.set(found.subarray(0, width), at);
  const turns = ropeBase === null ? null : frequencies(ropeBase, headDimension);
  const expected = rotated(first, { heads: kvHeads, headDimension }, 0, (row, pair) => row * (turns?.[pair] ?? 0));
  let squares = 0;
  let differences = 0;
  for (const [at, value] of found.entries()) {
    squares += value ** 2;
    differences += (value - (expected[at] ?? NaN)) ** 2;
  }
  return Math.sqrt(differences / squares);
}
