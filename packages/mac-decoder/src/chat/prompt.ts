import { MuserError } from '@muser/protocol';
import type { ChatMessage, ChatTemplate } from './template.js';

/** What prompt building needs of a model; `@muser/metal`'s Model is one. */
export interface PromptTokenizer {
  tokenize(text: string, options: { special: boolean }): Int32Array;
  isEndOfGeneration(token: number): boolean;
  readonly info: { readonly addBos: boolean; readonly bosToken: number | null };
}

/**
 * Makes the prompt's token ids. Template text is tokenized with control tokens, contents without: the text
 * `<|eot|>` in a content becomes the tokens of its characters.
 *
 * @throws MuserError INVALID_REQUEST when the template refuses the messages or a content would end the generation.
 */
export function buildPrompt(
  model: PromptTokenizer,
  template: ChatTemplate,
  messages: readonly ChatMessage[],
): Uint32Array {
  const parts: Int32Array[] = [];
  for (const piece of template.render(messages)) {
    const special = piece.source === 'template';
    const tokens = model.tokenize(piece.text, { special });
    // llama.cpp still reads tokens that a model marks as "user defined" in plain text; those that end an answer must not come in.
    if (!special && tokens.some((token) => model.isEndOfGeneration(token))) {
      throw new MuserError('INVALID_REQUEST', 'A message contains text that this model reads as the end of an answer.');
    }
    parts.push(tokens);
  }
  const { addBos, bosToken } = model.info;
  const first = parts.find((part) => part.length > 0)?.[0];
  const needsBos = addBos && bosToken !== null && first !== bosToken;
  return concatenate(needsBos ? [Int32Array.of(bosToken), ...parts] : parts);
}

function concatenate(parts: readonly Int32Array[]): Uint32Array {
  const joined = new Uint32Array(parts.reduce((sum, part) => sum + part.length, 0));
  let offset = 0;
  for (const part of parts) {
    joined.set(part, offset);
    offset += part.length;
  }
  return joined;
}
