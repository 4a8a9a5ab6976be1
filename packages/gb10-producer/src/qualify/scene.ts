import type { Geometry, LayerKind } from '@muser/protocol';

import { commonSpan } from './compare.js';
import { figuresOf } from './figures.js';
import type { PromptRows } from '../rows/prompt-rows.js';
import type { RowForm } from '../rows/rotation.js';

/** K and V of one layer, the rows of one side. */
export interface LayerRows {
  readonly k: Float32Array;
  readonly v: Float32Array;
}

/** What a diagnosis looks at: one layer of one prompt on both sides, and how far apart its rows may be. */
export interface Scene {
  readonly layer: number;
  readonly layerKind: LayerKind;
  readonly rotates: boolean;
  /** The reference's. */
  readonly geometry: Geometry;
  /** What the producer says its window is. */
  readonly producerWindow: number;
  readonly form: RowForm;
  /** Elements of a row. */
  readonly rowLength: number;
  /** Token of the first row. */
  readonly firstToken: number;
  readonly producer: LayerRows;
  readonly reference: LayerRows;
  /** Greatest distance. */
  readonly limits: { readonly k: number; readonly v: number };
}

export function sceneOf(
  producer: PromptRows,
  reference: PromptRows,
  layer: number,
  limits: { readonly k: number; readonly v: number },
): Scene {
  const { geometry } = reference;
  const span = commonSpan(producer, reference, layer);
  const layerKind = geometry.layers[layer] ?? 'global';
  const { kvHeads: heads, headDimension } = geometry;
  const rows = (of: PromptRows): LayerRows => ({ k: of.values(layer, 'k', span), v: of.values(layer, 'v', span) });
  return {
    layer,
    layerKind,
    rotates: geometry.ropeLayers === 'all' || layerKind === 'window',
    geometry,
    producerWindow: producer.geometry.windowTokens,
    form: { heads, headDimension },
    rowLength: heads * headDimension,
    firstToken: span.start,
    producer: rows(producer),
    reference: rows(reference),
    limits,
  };
}

/** A change that puts rows right brings them nearer by more than this; one that makes no difference proves nothing. */
const IMPROVEMENT = 2;

/** Whether the producer's rows are within the limit as they are. */
export function agrees({ producer, reference, limits }: Scene, kind: 'k' | 'v'): boolean {
  return figuresOf(producer[kind], reference[kind]).distance <= limits[kind];
}

/** Whether rows of the producer that were changed are now those of the reference, and were not before. */
export function putsRight(
  { producer, reference, limits }: Scene,
  kind: 'k' | 'v',
  changed: Float32Array,
  wanted = reference[kind],
): boolean {
  const after = figuresOf(changed, wanted).distance;
  return after <= limits[kind] && IMPROVEMENT * after < figuresOf(producer[kind], reference[kind]).distance;
}
