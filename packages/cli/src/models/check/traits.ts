import { MAX_HEAD_DIMENSION, MAX_KV_HEADS, MAX_LAYERS, MAX_VOCABULARY_SIZE, type LayerKind } from '@muser/protocol';

export type Verdict = 'remote-capable' | 'local only' | 'unsupported';

/** Why a model is not remote-capable: `unsupported` by muser at all, or `local` without a hand-off. */
export interface Obstacle {
  limits: 'local' | 'unsupported';
  reason: string;
}

/** Shape of the KV cache as a model's own metadata tell it. null: they do not say. */
export interface KvShape {
  layers: readonly LayerKind[] | null;
  layerCount: number;
  queryHeads: number;
  kvHeads: number;
  headDimension: number;
  /** 0 without window layers. */
  windowTokens: number;
  ropeBase: number | null;
  ropeLayers: 'all' | 'window' | null;
  vocabularySize: number;
}

/** What is known of a model, of either format. */
export interface ModelTraits {
  format: 'gguf' | 'huggingface';
  path: string;
  architecture: string;
  /** How the weights are stored, as far as it is known. */
  weights: string | null;
  /** null when an obstacle makes it meaningless. */
  shape: KvShape | null;
  /** null: there is no vocabulary. */
  tokenCount: number | null;
  obstacles: Obstacle[];
  notes: string[];
}

/** Of mixtures of experts: their attention, and so their KV, is as that of others. */
export const EXPERTS_NOTE =
  'It is a mixture of experts: quantizations may choose different ones, so `muser producer qualify` matters more than usual.';

/** Collects what speaks against a hand-off. */
export class Obstacles {
  readonly list: Obstacle[] = [];

  local(applies: boolean, reason: string): void {
    if (applies) this.list.push({ limits: 'local', reason });
  }

  unsupported(applies: boolean, reason: string): void {
    if (applies) this.list.push({ limits: 'unsupported', reason });
  }
}

/** What the hand-off protocol asks of a shape, whatever the model. */
export function checkShape(shape: KvShape, obstacles: Obstacles): void {
  const { layers, layerCount, queryHeads, kvHeads, headDimension, windowTokens, vocabularySize } = shape;
  const within = (what: string, value: number, maximum: number): void =>
    obstacles.unsupported(
      !Number.isInteger(value) || value < 1 || value > maximum,
      `${what} is ${value}, allowed are 1 to ${maximum}`,
    );
  within('the number of layers', layerCount, MAX_LAYERS);
  within('the number of KV heads', kvHeads, MAX_KV_HEADS);
  within('the head dimension', headDimension, MAX_HEAD_DIMENSION);
  within('the vocabulary', vocabularySize, MAX_VOCABULARY_SIZE);
  obstacles.local(headDimension % 2 !== 0, `the head dimension ${headDimension} is odd, so K has no half-split order`);
  obstacles.local(
    kvHeads > 0 && queryHeads % kvHeads !== 0,
    `${queryHeads} query heads are no multiple of ${kvHeads} KV heads`,
  );
  obstacles.local(layers?.includes('window') === true && windowTokens < 1, 'there are window layers and no window size');
}

export function verdictOf(obstacles: readonly Obstacle[]): Verdict {
  if (obstacles.some(({ limits }) => limits === 'unsupported')) return 'unsupported';
  return obstacles.length > 0 ? 'local only' : 'remote-capable';
}
