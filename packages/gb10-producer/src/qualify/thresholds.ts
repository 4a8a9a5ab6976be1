/**
 * How far the producer's rows may be from the reference's, for each pair of weight types. This file is the only place of
 * these figures. To add a pair: measure it with `muser producer qualify` (the record has the figures of every layer, also
 * when it fails), take about one and a half times the worst, and say in `why` what was measured.
 */

/** A limit that grows with depth, because each layer adds its own error: of the first layer and of the last. */
export interface DepthLimit {
  readonly first: number;
  readonly last: number;
}

/** Limits of K or of V; see Figures. */
export interface RowLimits {
  readonly distance: DepthLimit;
  readonly cosine: DepthLimit;
  readonly peak: DepthLimit;
  readonly why: string;
}

/** A limit of a whole qualification. */
export interface Limit {
  readonly value: number;
  readonly why: string;
}

export interface Thresholds {
  /** Weight types: of the producer, of the reference. */
  readonly producer: string;
  readonly reference: string;
  /** measured: with the models of this repository. published: from figures of others, which `why` names. */
  readonly basis: 'measured' | 'published';
  readonly k: RowLimits;
  readonly v: RowLimits;
  /** Greatest difference of two logits of the first token: the hand-off's and the decoder's own. */
  readonly logitDifference: Limit;
  /** Least share of prompts whose first token is the same. */
  readonly sameFirstTokens: Limit;
  /** Least share of greedy tokens that are the same at the same place, over all prompts. */
  readonly equalTokens: Limit;
}

/** The most careful pair first. */
export const THRESHOLDS: readonly [Thresholds, ...Thresholds[]] = [
  {
    producer: 'bf16',
    reference: 'q8_0',
    basis: 'measured',
    k: {
      distance: { first: 0.015, last: 0.045 },
      cosine: { first: 0.9998, last: 0.9988 },
      peak: { first: 0.1, last: 0.6 },
      why: 'muse-nano, vLLM 0.32 on the CPU: distance 0.0089 in layer 0 (bf16 and Q8_0 rounding alone) to 0.026 in layer 7, cosine 0.99966, peak 0.26.',
    },
    v: {
      distance: { first: 0.016, last: 0.055 },
      cosine: { first: 0.9998, last: 0.9983 },
      peak: { first: 0.1, last: 0.6 },
      why: 'muse-nano, vLLM 0.32 on the CPU: distance 0.0092 to 0.033, cosine 0.99945, peak 0.28.',
    },
    logitDifference: {
      value: 1.5,
      why: 'muse-nano: 0.21 to 0.64. Changing only the chunk size of llama.cpp gives up to 0.63, flash attention up to 0.50.',
    },
    sameFirstTokens: { value: 1, why: 'muse-nano: all of them; every answer is known to the model for certain.' },
    equalTokens: {
      value: 0.95,
      why: 'muse-nano: all of them. One word that is a near tie may change; an answer that goes another way may not.',
    },
  },
  {
    producer: 'bf16',
    reference: 'q4_k_m',
    basis: 'measured',
    k: {
      distance: { first: 0.135, last: 0.3 },
      cosine: { first: 0.99, last: 0.955 },
      peak: { first: 0.9, last: 2.5 },
      why: 'muse-nano-wide, vLLM 0.32 on the CPU: distance 0.090 in layer 0 (the rounding of K_proj) to 0.195 in layer 7, cosine 0.9809, peak 1.55.',
    },
    v: {
      distance: { first: 0.11, last: 0.36 },
      cosine: { first: 0.993, last: 0.935 },
      peak: { first: 0.8, last: 4 },
      why: 'muse-nano-wide, vLLM 0.32 on the CPU: distance 0.070 to 0.24, cosine 0.9709, peak 2.24.',
    },
    logitDifference: {
      value: 7,
      why: 'muse-nano-wide: 1.1 to 4.7 of 40 (the soft cap is 20). It is the error of the 4-bit prefill that the hand-off avoids.',
    },
    sameFirstTokens: {
      value: 0.8,
      why: 'muse-nano-wide: all. With another question the 4-bit prefill missed a fact that bf16 finds: one of five may differ.',
    },
    equalTokens: {
      value: 0.75,
      why: 'muse-nano-wide: all; 65 of 70 where the 4-bit prefill missed a fact. One answer of five may go another way.',
    },
  },
  {
    producer: 'nvfp4',
    reference: 'q4_k_m',
    basis: 'published',
    k: {
      distance: { first: 0.27, last: 0.6 },
      cosine: { first: 0.965, last: 0.82 },
      peak: { first: 2, last: 5 },
      why: 'NOT MEASURED on this pair. The limits of bf16 with Q4_K_M, widened by the ratio that NVFP4 rounding of weights and activations (0.095 each, W4A4) adds to the 0.090 of layer 0: sqrt(0.090² + 2 x 0.095²) / 0.090 = 1.8, and rounded up.',
    },
    v: {
      distance: { first: 0.25, last: 0.72 },
      cosine: { first: 0.965, last: 0.74 },
      peak: { first: 2, last: 8 },
      why: 'NOT MEASURED on this pair. As for K: sqrt(0.070² + 2 x 0.095²) / 0.070 = 2.2 in layer 0, 2 in the last.',
    },
    logitDifference: {
      value: 14,
      why: 'NOT MEASURED on this pair: twice the limit of bf16 with Q4_K_M.',
    },
    sameFirstTokens: {
      value: 0.6,
      why: 'Published: 89 of 100 top tokens of an NVFP4 model are those of its 16-bit original (llama.cpp pull request 25153, Qwen 3.6 35B-A3B, wikitext). Of five prompts at least three.',
    },
    equalTokens: {
      value: 0.5,
      why: 'Published, the same source: at 0.89 a token an answer of 15 tokens is rarely the same to its end; one that is not related to the other has hardly any token in common.',
    },
  },
];

/**
 * Weight types that are judged by the limits of another one. They round no more than it does, but for q8_0 as a producer:
 * the limits of bf16 with q8_0 already hold that rounding.
 */
const PRODUCERS: Readonly<Record<string, string>> = { f32: 'bf16', f16: 'bf16', q8_0: 'bf16' };
const REFERENCES: Readonly<Record<string, string>> = { f32: 'q8_0', f16: 'q8_0', bf16: 'q8_0' };

export interface Judgement {
  readonly thresholds: Thresholds;
  /** False: there are none for this pair, so the most careful ones judge. A pass is a pass; a failure may be too strict. */
  readonly exact: boolean;
}

export function thresholdsFor(producer: string, reference: string): Judgement {
  const wanted = { producer: PRODUCERS[producer] ?? producer, reference: REFERENCES[reference] ?? reference };
  const found = THRESHOLDS.find((one) => one.producer === wanted.producer && one.reference === wanted.reference);
  return { thresholds: found ?? THRESHOLDS[0], exact: found !== undefined };
}

/** The limit at one layer of so many. */
export function atDepth({ first, last }: DepthLimit, layer: number, layers: number): number {
  return layers < 2 ? last : first + ((last - first) * layer) / (layers - 1);
}
