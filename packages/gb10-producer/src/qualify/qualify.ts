import { type Geometry, MuserError } from '@muser/protocol';

import type { PrefillBackend } from '../backend/backend.js';
import { compareRows, type LayerFigures, worstOf } from './compare.js';
import { type Decoded, type Decoder, indexOfGreatest } from './decoder.js';
import { diagnose } from './diagnose.js';
import { type LayerLimits, limitsOf, kindsBeyond, judge } from './judge.js';
import { type Prefilled, prefillRows } from '../rows/prompt-rows.js';
import type { QualificationPrompt } from './prompts.js';
import type { CauseRecord, PromptRecord, QualificationRecord, SideRecord } from './record.js';
import { sceneOf } from './scene.js';
import { thresholdsFor } from './thresholds.js';

export interface QualifyOptions {
  /** Its rows are judged. */
  readonly producer: PrefillBackend;
  /** llama.cpp with the model that decodes: its rows are the measure. */
  readonly reference: PrefillBackend;
  /** With the reference's model. */
  readonly decoder: Decoder;
  readonly prompts: readonly QualificationPrompt[];
  /** Weight types, as in thresholds.ts. */
  readonly weights: { readonly producer: string; readonly reference: string };
  /** Version of this software. */
  readonly version: string;
  /** Cached rows are reused only within one scope. */
  readonly cacheScope: string;
  readonly signal: AbortSignal;
  /** Called before each prompt with its number from 1 on. */
  readonly onPrompt?: (number: number, of: number, tokens: number) => void;
}

interface PromptResult {
  readonly record: PromptRecord;
  readonly layers: LayerFigures[];
}

/**
 * Prefills fixed prompts on both sides, compares every layer's rows, decodes from both, and judges.
 * @throws MuserError GEOMETRY_MISMATCH when the rows of the two have different shapes; those of the engines; CANCELLED
 */
export async function qualify(options: QualifyOptions): Promise<QualificationRecord> {
  const { producer, reference, prompts, weights } = options;
  requireSameShape(producer.model.geometry, reference.model.geometry);
  const judgement = thresholdsFor(weights.producer, weights.reference);
  const limits = limitsOf(judgement.thresholds, reference.model.geometry.layers.length);
  const results: PromptResult[] = [];
  let cause: CauseRecord | null = null;
  for (const [index, prompt] of prompts.entries()) {
    options.onPrompt?.(index + 1, prompts.length, prompt.tokens.length);
    const sides = {
      producer: await prefillRows(producer, prompt.tokens, options),
      reference: await prefillRows(reference, prompt.tokens, options),
    };
    const layers = compareRows(sides.producer.rows, sides.reference.rows);
    cause ??= causeIn(sides, layers, limits);
    results.push({ layers, record: await promptRecord(options, prompt, sides) });
  }
  const layers = worstOf(results.map((result) => result.layers));
  const records = results.map(({ record }) => record);
  const failures = [
    ...differencesOf(producer, reference),
    ...judge({ layers, limits, prompts: records, thresholds: judgement.thresholds }),
  ];
  const { logitDifference, sameFirstTokens, equalTokens, ...pair } = judgement.thresholds;
  return {
    schema: 1,
    madeAt: new Date().toISOString(),
    muser: options.version,
    producer: sideRecord(producer, weights.producer),
    reference: sideRecord(reference, weights.reference),
    prompts: records,
    layers: layers.map((figures, layer) => ({
      layer,
      kind: reference.model.geometry.layers[layer] ?? 'global',
      ...figures,
      limits: limits[layer] as LayerLimits,
    })),
    thresholds: {
      producer: pair.producer,
      reference: pair.reference,
      basis: pair.basis,
      exact: judgement.exact,
      logitDifference: logitDifference.value,
      sameFirstTokens: sameFirstTokens.value,
      equalTokens: equalTokens.value,
    },
    verdict: failures.length === 0 ? 'passed' : 'failed',
    failures,
    cause,
  };
}

function requireSameShape(a: Geometry, b: Geometry): void {
  const shape = ({ layers, kvHeads, headDimension }: Geometry): string =>
    `${layers.length} layers, ${kvHeads} KV heads of ${headDimension} elements`;
  if (shape(a) === shape(b)) return;
  throw new MuserError('GEOMETRY_MISMATCH', `these models are no pair: ${shape(a)} here, ${shape(b)} there`);
}

/** What the two say of themselves and what does not agree; a decoder refuses such a producer. */
function differencesOf(producer: PrefillBackend, reference: PrefillBackend): string[] {
  const [a, b] = [producer.model, reference.model];
  const fields = ['windowTokens', 'ropeBase', 'ropeLayers', 'vocabularySize'] as const;
  const lines = fields
    .filter((field) => a.geometry[field] !== b.geometry[field])
    .map(
      (field) => `${field} is ${a.geometry[field]} in the producer's model and ${b.geometry[field]} in the reference's`,
    );
  if (a.geometry.layers.join() !== b.geometry.layers.join()) lines.push('other layers have a window');
  const same = Buffer.from(a.identity.fingerprint).equals(b.identity.fingerprint);
  return same || lines.length > 0 ? lines : ['the tokenizers are not the same'];
}

function causeIn(
  { producer, reference }: { producer: Prefilled; reference: Prefilled },
  layers: readonly LayerFigures[],
  limits: readonly LayerLimits[],
): CauseRecord | null {
  for (const [layer, figures] of layers.entries()) {
    const limit = limits[layer];
    if (limit === undefined) continue;
    const kinds = kindsBeyond(figures, limit);
    if (kinds.length === 0) continue;
    const distances = { k: limit.k.distance, v: limit.v.distance };
    const scene = sceneOf(producer.rows, reference.rows, layer, distances);
    return { layer, kinds, promptTokens: producer.rows.count + 1, ...diagnose(scene) };
  }
  return null;
}

async function promptRecord(
  { producer, reference, decoder, signal }: QualifyOptions,
  { kind, tokens }: QualificationPrompt,
  sides: { producer: Prefilled; reference: Prefilled },
): Promise<PromptRecord> {
  const speeds = {
    producerSpeed: sides.producer.tokensPerSecond,
    referenceSpeed: sides.reference.tokensPerSecond,
  };
  // Rows of another window do not fit into the decoder's.
  const fits = producer.model.geometry.windowTokens === reference.model.geometry.windowTokens;
  if (!fits) return { kind, tokens: tokens.length, answer: null, ...speeds };
  const own = await decoder.decode(tokens, sides.reference.rows, signal);
  const handedOff = await decoder.decode(tokens, sides.producer.rows, signal);
  return { kind, tokens: tokens.length, answer: answerRecord(handedOff, own), ...speeds };
}

function answerRecord(handedOff: Decoded, own: Decoded): PromptRecord['answer'] {
  return {
    logitDifference: greatestDifference(handedOff.logits, own.logits),
    sameFirstToken: indexOfGreatest(handedOff.logits) === indexOfGreatest(own.logits),
    equalTokens: own.answer.filter((token, index) => token === handedOff.answer[index]).length,
    comparedTokens: Math.max(own.answer.length, handedOff.answer.length),
  };
}

/** Tokens that a model never says have minus infinity on both sides. */
function greatestDifference(a: Float32Array, b: Float32Array): number {
  let greatest = 0;
  for (let token = 0; token < b.length; token += 1) {
    const [x = NaN, y = NaN] = [a[token], b[token]];
    const difference = x === y ? 0 : Math.abs(x - y);
    if (!Number.isFinite(difference))
      throw new MuserError('ENGINE_FAILED', 'the decoder has logits that are no numbers');
    greatest = Math.max(greatest, difference);
  }
  return greatest;
}

function sideRecord({ name, engine, model, limits }: PrefillBackend, weights: string): SideRecord {
  const hex = (bytes: Uint8Array): string => Buffer.from(bytes).toString('hex');
  return {
    backend: name,
    version: engine.version,
    model: model.identity.name,
    modelDigest: hex(model.identity.modelDigest),
    weights,
    fingerprint: hex(model.identity.fingerprint),
    cacheLayout: engine.cacheLayout,
    wireType: limits.wireTypes[0] ?? 'f16',
    chunkTokens: limits.chunkTokens,
  };
}
