import { join } from 'node:path';
import { writeFile } from 'node:fs/promises';
import { loadModel } from '@muser/metal';
import { needleDocument, type NeedleDocument } from '@muser/testing';
import { inCheckout } from './checkout.js';

export interface NeedleFile {
  file: string;
  needle: NeedleDocument;
}

/** Whose tokenizer counts; muse-nano-wide has the same. */
const MODEL = inCheckout('models/muse-nano/muse-nano-q8_0.gguf');

export interface NeedleLengths {
  count: number;
  /** Tokens of the shortest and the longest document, without the question. */
  shortest: number;
  longest: number;
}

/** Documents with one fact each that is asked for, from the shortest to the longest, evenly by ratio. */
export function makeNeedles({ count, shortest, longest }: NeedleLengths): Promise<NeedleDocument[]> {
  const lengthOf = (index: number): number =>
    Math.round(shortest * (longest / shortest) ** (index / Math.max(1, count - 1)));
  return needleDocuments(Array.from({ length: count }, (_, index) => lengthOf(index)));
}

/**
 * One document of each of these lengths, in tokens.
 * @param firstSeed of the first one; each other has the next
 */
export async function needleDocuments(lengths: readonly number[], firstSeed = 1): Promise<NeedleDocument[]> {
  const model = await loadModel(MODEL);
  const tokenCount = (text: string): number => model.tokenize(text, { special: false }).length;
  const made = lengths.map((approximateTokens, index) =>
    needleDocument({ seed: firstSeed + index, approximateTokens, tokenCount }),
  );
  model.close();
  return made;
}

/** The same as files in a folder. */
export async function writeNeedles(folder: string, lengths: NeedleLengths): Promise<NeedleFile[]> {
  const made = (await makeNeedles(lengths)).map((needle, index) => ({ file: join(folder, `${index}.txt`), needle }));
  for (const { file, needle } of made) await writeFile(file, needle.text);
  return made;
}

/** A document and what is asked about it, as one message in the form that the model was trained on. */
export function messageOf({ text, question }: Pick<NeedleDocument, 'text' | 'question'>): string {
  return `${text.trim()}\n\n${question}`;
}
