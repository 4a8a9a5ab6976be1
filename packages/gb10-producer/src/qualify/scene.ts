import type { Geometry, LayerKind } from '@muser/protocol';

import { commonSpan } from './compare.js';
import { figuresOf } from './figures.js';
import type { PromptRows } from './prompt-rows.js';
import type { RowForm } from './rotation.js';

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
    form: { heads, headDimension },
    rowLength: heads * headDimension,
    firstToken: span.start,
    producer: rows(producer),
    reference: rows(reference),
    limits,
  };
}

/** Whether rows are those of the reference, within the limits. */
export function agrees(scene: Scene, kind: 'k' | 'v', rows: Float32Array, reference = scene.reference[kind]): boolean {
  return figuresOf(rows, reference).distance <= scene.limits[kind];
}
