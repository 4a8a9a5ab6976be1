import { ggufFile, Random, tokenizerMetadata, VOCABULARY_SIZE, type GgufValue, type Tensor } from '@muser/testing';

/** Models of random weights whose cache, or whose feed-forward part, is of another kind. */
const HIDDEN = 64;
const LAYERS = 2;

type Shapes = Record<string, number[]>;

function model(architecture: string, metadata: Record<string, GgufValue>, layer: Shapes): Buffer {
  const random = new Random(3);
  const tensors = new Map<string, Tensor>();
  const add = (name: string, shape: number[]): void => {
    const norm = name.includes('norm');
    const count = shape.reduce((product, size) => product * size, 1);
    const spread = 1 / Math.sqrt(shape.at(-1) ?? 1);
    const values = Float32Array.from({ length: count }, () => (norm ? 1 : 0) + spread * (2 * random.next() - 1));
    tensors.set(name, { shape, values });
  };
  add('token_embd.weight', [VOCABULARY_SIZE, HIDDEN]);
  add('output_norm.weight', [HIDDEN]);
  add('output.weight', [VOCABULARY_SIZE, HIDDEN]);
  if ('attn_norm.bias' in layer) add('output_norm.bias', [HIDDEN]);
  for (let i = 0; i < LAYERS; i += 1) for (const [name, shape] of Object.entries(layer)) add(`blk.${i}.${name}`, shape);
  const own = Object.entries({
    block_count: LAYERS,
    context_length: 512,
    embedding_length: HIDDEN,
    'attention.layer_norm_rms_epsilon': { f32: 1e-6 },
    ...metadata,
  }).map(([key, value]): [string, GgufValue] => [`${architecture}.${key}`, value]);
  const all = { 'general.architecture': architecture, ...Object.fromEntries(own), ...tokenizerMetadata };
  return ggufFile(all, tensors);
}

/** Llama with four experts a layer, two of which are asked. */
export function expertsOfLlama(): Buffer {
  const [wide, experts] = [96, 4];
  return model(
    'llama',
    {
      'attention.head_count': 4,
      'attention.head_count_kv': 2,
      feed_forward_length: wide,
      expert_count: experts,
      expert_used_count: 2,
    },
    {
      'attn_norm.weight': [HIDDEN],
      'attn_q.weight': [HIDDEN, HIDDEN],
      'attn_k.weight': [HIDDEN / 2, HIDDEN],
      'attn_v.weight': [HIDDEN / 2, HIDDEN],
      'attn_output.weight': [HIDDEN, HIDDEN],
      'ffn_norm.weight': [HIDDEN],
      'ffn_gate_inp.weight': [experts, HIDDEN],
      'ffn_gate_exps.weight': [experts, wide, HIDDEN],
      'ffn_up_exps.weight': [experts, wide, HIDDEN],
      'ffn_down_exps.weight': [experts, HIDDEN, wide],
    },
  );
}

/** StableLM, whose RoPE turns a part of each head only. */
export function partialRope(): Buffer {
  const wide = 96;
  return model(
    'stablelm',
    {
      'attention.head_count': 2,
      'attention.layer_norm_epsilon': { f32: 1e-6 },
      'rope.dimension_count': 8,
      feed_forward_length: wide,
    },
    {
      'attn_norm.weight': [HIDDEN],
      'attn_norm.bias': [HIDDEN],
      'attn_q.weight': [HIDDEN, HIDDEN],
      'attn_k.weight': [HIDDEN, HIDDEN],
      'attn_v.weight': [HIDDEN, HIDDEN],
      'attn_output.weight': [HIDDEN, HIDDEN],
      'ffn_norm.weight': [HIDDEN],
      'ffn_norm.bias': [HIDDEN],
      'ffn_gate.weight': [wide, HIDDEN],
      'ffn_up.weight': [wide, HIDDEN],
      'ffn_down.weight': [HIDDEN, wide],
    },
  );
}

export function mamba(): Buffer {
  const [inner, state, rank, kernel] = [2 * HIDDEN, 16, 4, 4];
  return model(
    'mamba',
    {
      feed_forward_length: 0,
      'attention.head_count': 0,
      'ssm.conv_kernel': kernel,
      'ssm.inner_size': inner,
      'ssm.state_size': state,
      'ssm.time_step_rank': rank,
    },
    {
      'attn_norm.weight': [HIDDEN],
      'ssm_in.weight': [2 * inner, HIDDEN],
      'ssm_conv1d.weight': [inner, kernel],
      'ssm_conv1d.bias': [inner],
      'ssm_x.weight': [rank + 2 * state, inner],
      'ssm_dt.weight': [inner, rank],
      'ssm_dt.bias': [inner],
      ssm_a: [inner, state],
      ssm_d: [inner],
      'ssm_out.weight': [HIDDEN, inner],
    },
  );
}

/** DeepSeek's attention: K and V of all heads are one compressed vector. */
export function compressedAttention(): Buffer {
  const [heads, rank, queryRank, rotated, plain, values, wide] = [4, 32, 24, 16, 16, 16, 96];
  return model(
    'deepseek2',
    {
      feed_forward_length: wide,
      leading_dense_block_count: LAYERS,
      'attention.head_count': heads,
      'attention.head_count_kv': 1,
      'attention.q_lora_rank': queryRank,
      'attention.kv_lora_rank': rank,
      'attention.key_length': rank + rotated,
      'attention.value_length': rank,
      'attention.key_length_mla': plain + rotated,
      'attention.value_length_mla': values,
      'rope.dimension_count': rotated,
      expert_feed_forward_length: wide,
      expert_shared_count: 1,
    },
    {
      'attn_norm.weight': [HIDDEN],
      'attn_q_a.weight': [queryRank, HIDDEN],
      'attn_q_a_norm.weight': [queryRank],
      'attn_q_b.weight': [heads * (plain + rotated), queryRank],
      'attn_kv_a_mqa.weight': [rank + rotated, HIDDEN],
      'attn_kv_a_norm.weight': [rank],
      'attn_k_b.weight': [heads, rank, plain],
      'attn_v_b.weight': [heads, values, rank],
      'attn_output.weight': [HIDDEN, heads * values],
      'ffn_norm.weight': [HIDDEN],
      'ffn_gate.weight': [wide, HIDDEN],
      'ffn_up.weight': [wide, HIDDEN],
      'ffn_down.weight': [HIDDEN, wide],
    },
  );
}
