/** A byte-level BPE tokenizer: 256 bytes, one merge, three special tokens. Written for both formats. */
const MERGE = ['h', 'e'] as const;
const SPECIAL = ['<|begin|>', '<|end|>', '<|turn|>'] as const;

/** GPT-2's alphabet: printable bytes are themselves, the others are moved behind U+0100. */
const LETTERS = Array.from({ length: 256 }, (_, byte) => byte);
const MOVED = LETTERS.filter((byte) => !isPrintable(byte));
const ALPHABET = LETTERS.map((byte) => String.fromCharCode(isPrintable(byte) ? byte : 0x100 + MOVED.indexOf(byte)));
const TOKENS: readonly string[] = [...ALPHABET, MERGE.join(''), ...SPECIAL];

export const VOCABULARY_SIZE = TOKENS.length;
export const BEGIN_TOKEN = TOKENS.indexOf('<|begin|>');
export const END_TOKEN = TOKENS.indexOf('<|end|>');

/** tokenizer.json and tokenizer_config.json of a Hugging Face folder. */
export function tokenizerFiles(): Record<string, unknown> {
  const tokenizer = {
    version: '1.0',
    truncation: null,
    padding: null,
    added_tokens: SPECIAL.map((content) => ({
      id: TOKENS.indexOf(content),
      content,
      single_word: false,
      lstrip: false,
      rstrip: false,
      normalized: false,
      special: true,
    })),
    normalizer: null,
    pre_tokenizer: { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true },
    post_processor: null,
    decoder: { type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true },
    model: {
      type: 'BPE',
      dropout: null,
      unk_token: null,
      continuing_subword_prefix: null,
      end_of_word_suffix: null,
      fuse_unk: false,
      byte_fallback: false,
      vocab: Object.fromEntries(TOKENS.map((token, id) => [token, id])),
      merges: [MERGE.join(' ')],
    },
  };
  return {
    'tokenizer.json': tokenizer,
    'tokenizer_config.json': {
      tokenizer_class: 'PreTrainedTokenizerFast',
      bos_token: SPECIAL[0],
      eos_token: SPECIAL[1],
      model_max_length: 4096,
    },
  };
}

/** The same as metadata of a GGUF file. */
export const tokenizerMetadata = {
  'tokenizer.ggml.model': 'gpt2',
  'tokenizer.ggml.pre': 'gpt-2',
  'tokenizer.ggml.tokens': TOKENS,
  // 1 = ordinary, 3 = control
  'tokenizer.ggml.token_type': TOKENS.map((token) => ((SPECIAL as readonly string[]).includes(token) ? 3 : 1)),
  'tokenizer.ggml.merges': [MERGE.join(' ')],
  'tokenizer.ggml.bos_token_id': BEGIN_TOKEN,
  'tokenizer.ggml.eos_token_id': END_TOKEN,
};

function isPrintable(byte: number): boolean {
  return (byte >= 0x21 && byte < 0x7f) || (byte >= 0xa1 && byte < 0xad) || byte >= 0xae;
}
