import type { KvKind } from '@muser/protocol';

import { type Figures, figuresOf, worseOf } from './figures.js';
import type { PromptRows, RowSpan } from '../rows/prompt-rows.js';

/** One layer's rows of two engines, the producer's against the reference's. */
export interface LayerFigures {
  readonly k: Figures;
  readonly v: Figures;
}

/** The same rows of both sides as numbers. */
export interface RowPair {
  readonly producer: Float32Array;
  readonly reference: Float32Array;
}

/** Rows of a layer that both sides have. */
export function commonSpan(producer: PromptRows, reference: PromptRows, layer: number): RowSpan {
  const spans = [producer.spanOf(layer), reference.spanOf(layer)];
  return { start: Math.max(...spans.map(({ start }) => start)), end: Math.min(...spans.map(({ end }) => end)) };
}

export function rowPair(producer: PromptRows, reference: PromptRows, layer: number, kind: KvKind): RowPair {
  const span = commonSpan(producer, reference, layer);
  return { producer: producer.values(layer, kind, span), reference: reference.values(layer, kind, span) };
}

/** Figures of every layer, first layer first. @throws MuserError ENGINE_FAILED for values that are not finite */
export function compareRows(producer: PromptRows, reference: PromptRows): LayerFigures[] {
  return reference.geometry.layers.map((_, layer) => {
    const of = (kind: KvKind): Figures => {
      const pair = rowPair(producer, reference, layer, kind);
      return figuresOf(pair.producer, pair.reference);
    };
    return { k: of('k'), v: of('v') };
  });
}

/** Of each layer the worst figures that any prompt had. */
export function worstOf(prompts: readonly (readonly LayerFigures[])[]): LayerFigures[] {
  const [first = [], ...others] = prompts;
  return others.reduce<LayerFigures[]>(
    (worst, layers) =>
      worst.map((one, layer) => {
        const other = layers[layer] ?? one;
        return { k: worseOf(one.k, other.k), v: worseOf(one.v, other.v) };
      }),
    [...first],
  );
}
