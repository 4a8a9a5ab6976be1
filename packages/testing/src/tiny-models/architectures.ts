import type { GgufValue } from './gguf-file.js';
import { BEGIN_TOKEN, END_TOKEN, VOCABULARY_SIZE } from './tokenizer.js';

export type TinyArchitecture = 'llama' | 'qwen2' | 'qwen3' | 'gemma3';

/** One tensor under both of its names. */
export interface TensorSpec {
  readonly huggingFace: string;
  readonly gguf: string;
  readonly shape: readonly number[];
  readonly kind: 'matrix' | 'norm' | 'bias';
  /** Heads whose rows llama.cpp's converter brings from half-split into interleaved order. */
  readonly interleavedHeads?: number;
  /** What the converter adds to every element. */
  readonly added?: number;
}

export interface Blueprint {
  readonly config: Record<string, unknown>;
  readonly metadata: Record<string, GgufValue>;
  readonly tensors: readonly TensorSpec[];
}

export interface Sizes {
  readonly ropeBase: number;
  readonly kvHeads: number;
  readonly layers: number;
  /** Tokens that a window layer sees; of gemma3, whose every second layer is one. */
  readonly windowTokens: number;
}

const HIDDEN = 128;
const FEED_FORWARD = 192;
const QUERY_HEADS = 4;
const EPSILON = 1e-6;
const CONTEXT = 8192;

/** What the four architectures do differently, as their converters and configurations say. */
const KINDS = {
  llama: { model: 'LlamaForCausalLM', type: 'llama', headDimension: 32, interleaved: true, bias: false, qkNorm: false },
  qwen2: { model: 'Qwen2ForCausalLM', type: 'qwen2', headDimension: 32, interleaved: false, bias: true, qkNorm: false },
  qwen3: { model: 'Qwen3ForCausalLM', type: 'qwen3', headDimension: 64, interleaved: false, bias: false, qkNorm: true },
  gemma3: {
    model: 'Gemma3ForCausalLM',
    type: 'gemma3_text',
    headDimension: 64,
    interleaved: false,
    bias: false,
    qkNorm: true,
  },
} as const;

export function blueprint(architecture: TinyArchitecture, sizes: Sizes): Blueprint {
  return {
    config: configOf(architecture, sizes),
    metadata: metadataOf(architecture, sizes),
    tensors: tensorsOf(architecture, sizes),
  };
}

function layerTypes({ layers }: Sizes): string[] {
  return Array.from({ length: layers }, (_, layer) => (layer % 2 === 0 ? 'sliding_attention' : 'full_attention'));
}

function configOf(architecture: TinyArchitecture, sizes: Sizes): Record<string, unknown> {
  const { model, type, headDimension } = KINDS[architecture];
  const common = {
    architectures: [model],
    model_type: type,
    dtype: 'bfloat16',
    hidden_size: HIDDEN,
    intermediate_size: FEED_FORWARD,
    num_hidden_layers: sizes.layers,
    num_attention_heads: QUERY_HEADS,
    num_key_value_heads: sizes.kvHeads,
    head_dim: headDimension,
    max_position_embeddings: CONTEXT,
    rms_norm_eps: EPSILON,
    rope_theta: sizes.ropeBase,
    vocab_size: VOCABULARY_SIZE,
    bos_token_id: BEGIN_TOKEN,
    eos_token_id: END_TOKEN,
    pad_token_id: END_TOKEN,
    tie_word_embeddings: false,
  };
  if (architecture !== 'gemma3') return { ...common, hidden_act: 'silu', attention_bias: false };
  return {
    ...common,
    hidden_activation: 'gelu_pytorch_tanh',
    attention_bias: false,
    query_pre_attn_scalar: headDimension,
    rope_local_base_freq: sizes.ropeBase,
    sliding_window: sizes.windowTokens,
    layer_types: layerTypes(sizes),
  };
}

function metadataOf(architecture: TinyArchitecture, sizes: Sizes): Record<string, GgufValue> {
  const { headDimension } = KINDS[architecture];
  const own: Record<string, GgufValue> = {
    block_count: sizes.layers,
    context_length: CONTEXT,
    embedding_length: HIDDEN,
    feed_forward_length: FEED_FORWARD,
    'attention.head_count': QUERY_HEADS,
    'attention.head_count_kv': sizes.kvHeads,
    'attention.key_length': headDimension,
    'attention.value_length': headDimension,
    'attention.layer_norm_rms_epsilon': { f32: EPSILON },
    'rope.freq_base': { f32: sizes.ropeBase },
  };
  if (architecture === 'gemma3') {
    own['attention.sliding_window'] = sizes.windowTokens;
    own['attention.sliding_window_pattern'] = 2;
    own['rope.freq_base_swa'] = { f32: sizes.ropeBase };
  }
  const entries = Object.entries(own).map(([key, value]) => [`${architecture}.${key}`, value]);
  return {
    'general.architecture': architecture,
    'general.name': `tiny ${architecture}`,
    ...(Object.fromEntries(entries) as Record<string, GgufValue>),
  };
}

function tensorsOf(architecture: TinyArchitecture, sizes: Sizes): TensorSpec[] {
  const added = architecture === 'gemma3' ? { added: 1 } : {};
  const tensors: TensorSpec[] = [
    {
      huggingFace: 'model.embed_tokens.weight',
      gguf: 'token_embd.weight',
      shape: [VOCABULARY_SIZE, HIDDEN],
      kind: 'matrix',
    },
    { huggingFace: 'model.norm.weight', gguf: 'output_norm.weight', shape: [HIDDEN], kind: 'norm', ...added },
    { huggingFace: 'lm_head.weight', gguf: 'output.weight', shape: [VOCABULARY_SIZE, HIDDEN], kind: 'matrix' },
  ];
  for (let layer = 0; layer < sizes.layers; layer += 1) {
    const place = { huggingFace: `model.layers.${layer}.`, gguf: `blk.${layer}.` };
    for (const spec of [...attention(architecture, sizes.kvHeads), ...others(architecture)]) {
      const isNorm = spec.kind === 'norm';
      tensors.push({
        ...spec,
        ...(isNorm ? added : {}),
        huggingFace: place.huggingFace + spec.huggingFace,
        gguf: place.gguf + spec.gguf,
      });
    }
  }
  return tensors;
}

function attention(architecture: TinyArchitecture, kvHeads: number): TensorSpec[] {
  const { headDimension, interleaved, bias, qkNorm } = KINDS[architecture];
  const projections = [
    { letter: 'q', heads: QUERY_HEADS, turns: true },
    { letter: 'k', heads: kvHeads, turns: true },
    { letter: 'v', heads: kvHeads, turns: false },
  ];
  const tensors: TensorSpec[] = [];
  for (const { letter, heads, turns } of projections) {
    const names = { huggingFace: `self_attn.${letter}_proj.`, gguf: `attn_${letter}.` };
    const order = interleaved && turns ? { interleavedHeads: heads } : {};
    const rows = heads * headDimension;
    const suffix = (ending: string) => ({ huggingFace: names.huggingFace + ending, gguf: names.gguf + ending });
    tensors.push({ ...suffix('weight'), shape: [rows, HIDDEN], kind: 'matrix', ...order });
    if (bias) tensors.push({ ...suffix('bias'), shape: [rows], kind: 'bias' });
    if (qkNorm && turns) {
      const name = `${letter}_norm.weight`;
      tensors.push({ huggingFace: `self_attn.${name}`, gguf: `attn_${name}`, shape: [headDimension], kind: 'norm' });
    }
  }
  const shape = [HIDDEN, QUERY_HEADS * headDimension];
  tensors.push({ huggingFace: 'self_attn.o_proj.weight', gguf: 'attn_output.weight', shape, kind: 'matrix' });
  return tensors;
}

function others(architecture: TinyArchitecture): TensorSpec[] {
  const norm = (huggingFace: string, gguf: string): TensorSpec => ({
    huggingFace: `${huggingFace}.weight`,
    gguf: `${gguf}.weight`,
    shape: [HIDDEN],
    kind: 'norm',
  });
  const norms =
    architecture === 'gemma3'
      ? [
          norm('input_layernorm', 'attn_norm'),
          norm('post_attention_layernorm', 'post_attention_norm'),
          norm('pre_feedforward_layernorm', 'ffn_norm'),
          norm('post_feedforward_layernorm', 'post_ffw_norm'),
        ]
      : [norm('input_layernorm', 'attn_norm'), norm('post_attention_layernorm', 'ffn_norm')];
  const matrix = (name: string, shape: number[]): TensorSpec => ({
    huggingFace: `mlp.${name}_proj.weight`,
    gguf: `ffn_${name}.weight`,
    shape,
    kind: 'matrix',
  });
  return [
    ...norms,
    matrix('gate', [FEED_FORWARD, HIDDEN]),
    matrix('up', [FEED_FORWARD, HIDDEN]),
    matrix('down', [HIDDEN, FEED_FORWARD]),
  ];
}
