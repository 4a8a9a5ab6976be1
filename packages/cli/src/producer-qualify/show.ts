import { formatCount, formatTable } from '../format.js';
import { printable } from '../terminal.js';
import type { SignedRecord } from './schema.js';

/** A record, and the file that it is in. */
export interface Qualification extends SignedRecord {
  file: string;
}

type QualifiedRecord = SignedRecord['record'];

export function qualificationText({ record, signer, nodeId, file }: Qualification): string {
  const { producer, reference, verdict, failures } = record;
  const name = ({ backend, version, model, weights }: QualifiedRecord['producer']): string =>
    `${model} (${weights}, ${backend} ${version})`;
  const signedBy = signer === 'node' ? `node ${nodeId}` : `a key of this state folder (${nodeId})`;
  return printable(
    [
      `${name(producer)} prefills for ${name(reference)}`,
      `cache of the producer: ${producer.cacheLayout}`,
      limitsText(record),
      '',
      layersTable(record),
      '',
      promptsTable(record),
      '',
      ...failures.map((failure) => `beyond its limit: ${failure}`),
      ...causeLines(record),
      `${verdict === 'passed' ? 'PASSED' : 'FAILED'}, ${record.madeAt}`,
      `${file}, signed by ${signedBy}`,
    ].join('\n'),
  );
}

function limitsText({ thresholds }: QualifiedRecord): string {
  const { producer, reference, basis, exact } = thresholds;
  const what = `limits: ${producer} with ${reference}, ${basis === 'measured' ? 'measured' : 'from published figures, not measured'}`;
  return exact ? what : `${what}; this pair has none of its own, so these are the most careful ones`;
}

function layersTable({ layers }: QualifiedRecord): string {
  const header = ['layer', 'kind', 'K distance', 'limit', 'cosine', 'max', 'V distance', 'limit', 'cosine', 'max'];
  const rows = layers.map(({ layer, kind, k, v, limits }) => [
    String(layer),
    kind,
    ...[
      { figures: k, limit: limits.k },
      { figures: v, limit: limits.v },
    ].flatMap(({ figures, limit }) => [
      figures.distance.toFixed(4),
      limit.distance.toFixed(3),
      figures.cosine.toFixed(5),
      figures.maxDifference.toFixed(3),
    ]),
  ]);
  return formatTable([header, ...rows], [0, 2, 3, 4, 5, 6, 7, 8, 9]);
}

function promptsTable({ prompts }: QualifiedRecord): string {
  const header = ['prompt', 'logits differ by', 'first token', 'greedy tokens', 'producer', 'llama.cpp'];
  const speed = (value: number | null): string => (value === null ? '-' : `${formatCount(value)} tokens/s`);
  const rows = prompts.map(({ tokens, answer, producerSpeed, referenceSpeed }) => [
    `${formatCount(tokens)} tokens`,
    answer === null ? '-' : answer.logitDifference.toFixed(3),
    answer === null ? '-' : answer.sameFirstToken ? 'same' : 'another',
    answer === null ? '-' : `${answer.equalTokens} of ${answer.comparedTokens}`,
    speed(producerSpeed),
    speed(referenceSpeed),
  ]);
  return formatTable([header, ...rows], [0, 1, 3, 4, 5]);
}

function causeLines({ cause }: QualifiedRecord): string[] {
  if (cause === null) return [];
  const kinds = cause.kinds.map((kind) => kind.toUpperCase()).join(' and ');
  return [
    `first layer that differs: ${cause.layer} (${kinds}), in the prompt of ${formatCount(cause.promptTokens)} tokens`,
    `likely cause: ${cause.cause}: ${cause.detail}`,
  ];
}
