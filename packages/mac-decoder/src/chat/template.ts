import { randomBytes } from 'node:crypto';
import { Template } from '@huggingface/jinja';
import { MuserError } from '@muser/protocol';

/** A message as the API hands it on: `role` is one of a closed list, `content` is what the client wrote. */
export interface ChatMessage {
  readonly role: string;
  readonly content: string;
}

/** A part of a prompt: `template` text may name control tokens, `content` text never does. */
export interface PromptPiece {
  readonly source: 'template' | 'content';
  readonly text: string;
}

export interface TemplateTexts {
  readonly bosText: string;
  readonly eosText: string;
}

/**
 * For models whose file has no template: ChatML, as in llama.cpp. Such a model may lack ChatML's control tokens, so the
 * end marker is a stop string too.
 */
export const DEFAULT_CHAT_TEMPLATE =
  "{%- for m in messages -%}{{- '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' -}}{%- endfor -%}" +
  "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}";
export const DEFAULT_STOP_STRINGS: readonly string[] = ['<|im_end|>'];

// Sentinels are made of private-use characters: no template splits at them, escapes them or changes their case.
const OPEN = '\ue0f0';
const CLOSE = '\ue0f1';
const DIGIT_BASE = 0xe100;
const SENTINEL_CHARACTER = /[\ue0f0\ue0f1\ue100-\ue1ff]/;
const NONCE_DIGITS = 16;
/**
 * Stands on both sides of a sentinel. Where a template trims a content, jinja trims this white space instead; its
 * absence says that the content that takes the sentinel's place must be trimmed there.
 */
const EDGE = '\u2029';

/**
 * A model's chat template. It is rendered with sentinels in place of the contents, so that no content is ever read as
 * template text: what a user writes cannot forge a control token, end a turn or start another one.
 */
export class ChatTemplate {
  /** Strings that end an answer because of the template, beside the model's end-of-generation tokens. */
  readonly stopStrings: readonly string[];
  private readonly template: Template;

  /** @throws MuserError MODEL_UNSUPPORTED when the template cannot be parsed. */
  constructor(
    source: string | null,
    private readonly texts: TemplateTexts,
  ) {
    this.stopStrings = source === null ? DEFAULT_STOP_STRINGS : [];
    try {
      this.template = new Template(source ?? DEFAULT_CHAT_TEMPLATE);
    } catch (error) {
      throw new MuserError('MODEL_UNSUPPORTED', `The model's chat template cannot be parsed: ${messageOf(error)}`, {
        cause: error,
      });
    }
  }

  /**
   * @returns the prompt up to the start of the assistant's answer, in order; neighbours never have the same source
   *   unless both are contents.
   * @throws MuserError INVALID_REQUEST when the template refuses these messages.
   */
  render(messages: readonly ChatMessage[]): PromptPiece[] {
    const nonce = digits(randomBytes(NONCE_DIGITS));
    const sentinels = messages.map((message, index) =>
      // An empty content stays empty: templates ask whether there is one, and there is nothing to forge.
      message.content === '' ? '' : EDGE + OPEN + nonce + digits([index >> 8, index & 255]) + CLOSE + EDGE,
    );
    const rendered = this.renderText(
      messages.map((message, index) => ({ role: message.role, content: sentinels[index] })),
    );
    return splitAtSentinels(rendered, nonce, messages);
  }

  private renderText(messages: readonly object[]): string {
    try {
      return this.template.render({
        messages,
        add_generation_prompt: true,
        bos_token: this.texts.bosText,
        eos_token: this.texts.eosText,
      });
    } catch (error) {
      throw new MuserError('INVALID_REQUEST', `The model's chat template refuses these messages: ${messageOf(error)}`, {
        cause: error,
      });
    }
  }
}

function splitAtSentinels(rendered: string, nonce: string, messages: readonly ChatMessage[]): PromptPiece[] {
  const sentinel = new RegExp(`(${EDGE}?)${OPEN}${nonce}([\\ue100-\\ue1ff]{2})${CLOSE}(${EDGE}?)`, 'g');
  const pieces: PromptPiece[] = [];
  let templateStart = 0;
  for (const match of rendered.matchAll(sentinel)) {
    const [whole, leftEdge, index, rightEdge] = match;
    pieces.push({ source: 'template', text: rendered.slice(templateStart, match.index) });
    let text = messages[indexOf(index ?? '')]?.content ?? '';
    if (leftEdge === '') text = text.trimStart();
    if (rightEdge === '') text = text.trimEnd();
    pieces.push({ source: 'content', text });
    templateStart = match.index + whole.length;
  }
  pieces.push({ source: 'template', text: rendered.slice(templateStart) });
  if (pieces.some((piece) => piece.source === 'template' && SENTINEL_CHARACTER.test(piece.text))) {
    throw new MuserError('INVALID_REQUEST', "The model's chat template takes contents apart, which is not supported.");
  }
  return pieces.filter((piece) => piece.text !== '');
}

function digits(values: Iterable<number>): string {
  return Array.from(values, (value) => String.fromCharCode(DIGIT_BASE + value)).join('');
}

function indexOf(encoded: string): number {
  return ((encoded.charCodeAt(0) - DIGIT_BASE) << 8) | (encoded.charCodeAt(1) - DIGIT_BASE);
}

function messageOf(error: unknown): string {
  const message = error instanceof Error ? error.message : String(error);
  return message.replace(/[\u2029\ue000-\uf8ff]/g, '').slice(0, 300);
}
