import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { loadModel } from '@muser/metal';
import { needleDocument, type NeedleDocument } from '@muser/testing';

export interface NeedleFile {
  file: string;
  needle: NeedleDocument;
}

const MODEL = fileURLToPath(new URL('../../../models/muse-nano/muse-nano-q8_0.gguf', import.meta.url));

/** Documents with one fact each that is asked for, from the shortest to the longest, evenly by ratio. */
export async function writeNeedles(
  folder: string,
  { count, shortest, longest }: { count: number; shortest: number; longest: number },
): Promise<NeedleFile[]> {
  const model = await loadModel(MODEL);
  const tokenCount = (text: string): number => model.tokenize(text, { special: false }).length;
  const made = Array.from({ length: count }, (_, index) => {
    const approximateTokens = Math.round(shortest * (longest / shortest) ** (index / (count - 1)));
    const needle = needleDocument({ seed: index + 1, approximateTokens, tokenCount });
    return { file: join(folder, `${index}.txt`), needle };
  });
  model.close();
  for (const { file, needle } of made) await writeFile(file, needle.text);
  return made;
}
