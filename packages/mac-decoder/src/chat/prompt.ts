import { MuserError } from '@muser/protocol';
import type { ChatMessage, ChatTemplate } from './template.js';

/** What prompt building needs of a model; `@muser/metal`'s Model is one. */
export interface PromptTokenizer {
  tokenizePieces(pieces: readonly { text: string; special: boolean }[]): Promise<Int32Array[]>;
  readonly info: { readonly addBos: boolean; readonly bosToken: number | null };
}

/**
 * Makes the prompt's token ids, on a thread of the engine's: a long prompt would hold every other answer up. Template text
 * is tokenized with control tokens, contents without: the text `<|eot|>` in a content becomes the tokens of its characters.
 *
 * @param endTokens tokens at which an answer ends
 * @throws MuserError INVALID_REQUEST when the template refuses the messages or a content would end the generation.
 */
export async function buildPrompt(
  model: PromptTokenizer,
  template: ChatTemplate,
  messages: readonly ChatMessage[],
  endTokens: readonly number[],
): Promise<Uint32Array> {
  const pieces = template.render(messages).map(({ text, source }) => ({ text, special: source === 'template' }));
  const parts = await model.tokenizePieces(pieces);
  for (const [at, tokens] of parts.entries()) {
    // llama.cpp still reads tokens that a model marks as "user defined" in plain text; those that end an answer must not come in.
    if (pieces[at]?.special === false && tokens.some((token) => endTokens.includes(token))) {
      throw new MuserError('INVALID_REQUEST', 'A message contains text that this model reads as the end of an answer.');
    }
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
