import type { LayerFigures } from './compare.js';
import type { Figures } from './figures.js';
import type { LayerRecord, PromptRecord } from './record.js';
import { atDepth, type RowLimits, type Thresholds } from './thresholds.js';

/** Limits of one layer. */
export type LayerLimits = LayerRecord['limits'];
type FigureLimits = LayerLimits['k'];

export function limitsOf(thresholds: Thresholds, layers: number): LayerLimits[] {
  const at = ({ distance, cosine, peak }: RowLimits, layer: number): FigureLimits => ({
    distance: atDepth(distance, layer, layers),
    cosine: atDepth(cosine, layer, layers),
    peak: atDepth(peak, layer, layers),
  });
  return Array.from({ length: layers }, (_, layer) => ({ k: at(thresholds.k, layer), v: at(thresholds.v, layer) }));
}

/** Which of a layer's K and V are beyond a limit. */
export function kindsBeyond(figures: LayerFigures, limits: LayerLimits): ('k' | 'v')[] {
  return (['k', 'v'] as const).filter((kind) => beyond(figures[kind], limits[kind]).length > 0);
}

export interface Case {
  /** Worst of all prompts. */
  readonly layers: readonly LayerFigures[];
  readonly limits: readonly LayerLimits[];
  readonly prompts: readonly PromptRecord[];
  readonly thresholds: Thresholds;
}

/** A line for everything that is beyond its limit. */
export function judge({ layers, limits, prompts, thresholds }: Case): string[] {
  const lines = layers.flatMap((figures, layer) => {
    const limit = limits[layer];
    if (limit === undefined) return [];
    const parts = (['k', 'v'] as const).flatMap((kind) =>
      beyond(figures[kind], limit[kind]).map((text) => `${kind.toUpperCase()} ${text}`),
    );
    return parts.length === 0 ? [] : [`layer ${layer}: ${parts.join(', ')}`];
  });
  return [...lines, ...judgeAnswers(prompts, thresholds)];
}

function beyond(figures: Figures, limits: FigureLimits): string[] {
  const lines: string[] = [];
  const tell = (name: string, value: number, limit: number): unknown =>
    lines.push(`${name} ${value.toPrecision(3)} (limit ${limit.toPrecision(3)})`);
  if (figures.distance > limits.distance) tell('distance', figures.distance, limits.distance);
  if (figures.cosine < limits.cosine)
    lines.push(`cosine ${figures.cosine.toFixed(5)} (limit ${limits.cosine.toFixed(5)})`);
  if (figures.peak > limits.peak) tell('peak', figures.peak, limits.peak);
  return lines;
}

function judgeAnswers(prompts: readonly PromptRecord[], thresholds: Thresholds): string[] {
  const answers = prompts.flatMap(({ answer }) => (answer === null ? [] : [answer]));
  if (answers.length === 0) return ['the decoder cannot install these rows'];
  const lines: string[] = [];
  const greatest = Math.max(...answers.map(({ logitDifference }) => logitDifference));
  const same = answers.filter(({ sameFirstToken }) => sameFirstToken).length;
  const sum = (of: (answer: (typeof answers)[number]) => number): number =>
    answers.reduce((total, answer) => total + of(answer), 0);
  const equal = sum(({ equalTokens }) => equalTokens);
  const compared = sum(({ comparedTokens }) => comparedTokens);
  if (greatest > thresholds.logitDifference.value) {
    lines.push(`logits differ by ${greatest.toFixed(2)} (limit ${thresholds.logitDifference.value})`);
  }
  if (same / answers.length < thresholds.sameFirstTokens.value) {
    lines.push(
      `${same} of ${answers.length} first tokens are the same (limit ${percent(thresholds.sameFirstTokens.value)})`,
    );
  }
  if (equal / compared < thresholds.equalTokens.value) {
    lines.push(`${equal} of ${compared} greedy tokens are the same (limit ${percent(thresholds.equalTokens.value)})`);
  }
  return lines;
}

function percent(share: number): string {
  return `${Math.round(share * 100)} %`;
}
