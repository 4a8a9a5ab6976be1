import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import type { LayerKind } from '@muser/protocol';
import { ServiceError } from '@muser/service-kit';
import { z } from 'zod';
import { readText } from '../../files.js';
import { damaged, HeaderReader } from './header-reader.js';
import { checkShape, EXPERTS_NOTE, type KvShape, type ModelTraits, Obstacles } from './traits.js';

const MIB = 1024 * 1024;
const MAX_CONFIG_BYTES = 4 * MIB;
const MAX_TOKENIZER_BYTES = 128 * MIB;
const MAX_HEADER_BYTES = 64 * MIB;
const MAX_LAYER_ENTRIES = 1_024;
const MAX_TOKENS = 2 ** 24;

const count = z.number().int().min(0);
const perLayer = z.array(z.unknown()).max(MAX_LAYER_ENTRIES);
const ropeForm = z.looseObject({
  rope_theta: z.number().nullish(),
  rope_type: z.string().nullish(),
  type: z.string().nullish(),
  partial_rotary_factor: z.number().nullish(),
  mrope_section: z.unknown().optional(),
});
/** Some models have a form for each kind of layer. */
const ropeSchema = ropeForm.extend({ full_attention: ropeForm.nullish(), sliding_attention: ropeForm.nullish() });
/** What is read of config.json, of the text model when there are several. Unknown keys stay visible to `keys`. */
const textSchema = z.looseObject({
  num_hidden_layers: count,
  num_attention_heads: count,
  num_key_value_heads: count.nullish(),
  head_dim: count.nullish(),
  hidden_size: count.nullish(),
  vocab_size: count.nullish(),
  layer_types: z.array(z.string()).max(MAX_LAYER_ENTRIES).nullish(),
  sliding_window: count.nullish(),
  use_sliding_window: z.boolean().nullish(),
  layer_rope_theta: z.array(z.number().nullable()).max(MAX_LAYER_ENTRIES).nullish(),
  rope_theta: z.number().nullish(),
  rope_local_base_freq: z.number().nullish(),
  rope_parameters: ropeSchema.nullish(),
  rope_scaling: ropeForm.nullish(),
  partial_rotary_factor: z.number().nullish(),
  no_rope_layers: perLayer.nullish(),
  tie_word_embeddings: z.boolean().nullish(),
});
const configSchema = z.looseObject({
  architectures: z.array(z.string()).nullish(),
  model_type: z.string(),
  is_encoder_decoder: z.boolean().nullish(),
  auto_map: z.unknown().optional(),
  text_config: z.looseObject({}).nullish(),
  quantization_config: z
    .looseObject({ quant_method: z.string().nullish(), format: z.string().nullish(), kv_cache_scheme: z.unknown() })
    .nullish(),
});
type Text = z.infer<typeof textSchema>;
type Config = z.infer<typeof configSchema>;

/** The tokens of a tokenizer.json in id order; null where an id has none. */
export type TokenList = (string | null)[];

export interface HfModel {
  traits: ModelTraits;
  tokens: TokenList | null;
}

/** What a Hugging Face folder's config.json, tokenizer.json and safetensors headers say about the KV cache. */
export async function hfTraits(folder: string): Promise<HfModel> {
  const file = join(folder, 'config.json');
  const raw = await readJson(file, MAX_CONFIG_BYTES);
  if (raw === undefined) throw damaged(`${folder} has no config.json`);
  const config = parse(configSchema, raw, file);
  const text = parse(textSchema, config.text_config ?? config, file);
  const obstacles = new Obstacles();
  const notes: string[] = [];
  lookForOtherKinds(config, text, obstacles, notes);
  if (config.auto_map !== undefined) notes.push("It brings code of its own, which muser never runs: vLLM must know the model by itself.");
  const tokens = await readTokens(join(folder, 'tokenizer.json'), obstacles);
  const shape = readShape(text, tokens?.length ?? 0, obstacles);
  checkShape(shape, obstacles);
  await checkWeights(folder, shape, obstacles);
  const quantization = config.quantization_config;
  const traits: ModelTraits = {
    format: 'huggingface',
    path: folder,
    architecture: config.model_type,
    weights: quantization == null ? null : [quantization.quant_method, quantization.format].filter(Boolean).join(' '),
    shape,
    tokenCount: tokens?.length ?? null,
    obstacles: obstacles.list,
    notes,
  };
  return { traits, tokens };
}

function lookForOtherKinds(config: Config, text: Text, obstacles: Obstacles, notes: string[]): void {
  const architectures = config.architectures ?? [];
  obstacles.unsupported(
    !architectures.some((name) => /For(CausalLM|ConditionalGeneration)$/.test(name)),
    `it generates no text (${architectures.join(', ') || 'no architecture is named'})`,
  );
  obstacles.unsupported(config.is_encoder_decoder === true, 'it is an encoder with a decoder, whose KV is of another kind');
  const has = (...names: string[]): boolean => names.some((name) => text[name] !== undefined && text[name] !== null);
  const above = (limit: number, ...names: string[]): boolean => names.some((name) => Number(text[name] ?? 0) > limit);
  obstacles.local(has('kv_lora_rank', 'qk_nope_head_dim'), 'its KV cache is compressed (MLA), which is no K and V per head');
  obstacles.local(
    Object.keys(text).some((key) => /^(mamba|ssm|linear_(num|key|value|conv)|rwkv)/.test(key)),
    'some layers keep a recurrent state (Mamba, RWKV, linear attention) instead of K and V',
  );
  if (above(1, 'num_experts', 'num_local_experts', 'n_routed_experts', 'moe_num_experts')) notes.push(EXPERTS_NOTE);
  obstacles.local(above(0, 'num_kv_shared_layers'), 'layers share their KV');
  obstacles.local(has('attention_chunk_size'), 'it attends in chunks');
  obstacles.local(text['alibi'] === true, 'it uses ALiBi instead of RoPE');
  obstacles.local(
    config.quantization_config?.kv_cache_scheme != null,
    'it asks for a quantized KV cache: only 16-bit rows are handed over',
  );
}

function readShape(text: Text, tokenCount: number, obstacles: Obstacles): KvShape {
  const queryHeads = text.num_attention_heads;
  const headDimension = text.head_dim ?? (text.hidden_size ?? 0) / Math.max(1, queryHeads);
  const valueDimension = Number(text['v_head_dim'] ?? headDimension);
  obstacles.local(valueDimension !== headDimension, 'rows of K and V differ in length');
  const layers = layerKinds(text, obstacles);
  const { ropeBase, ropeLayers } = readRope(text, layers, obstacles);
  return {
    layers,
    layerCount: text.num_hidden_layers,
    queryHeads,
    kvHeads: text.num_key_value_heads ?? queryHeads,
    headDimension,
    windowTokens: layers?.includes('window') === true ? (text.sliding_window ?? 0) : 0,
    ropeBase,
    ropeLayers,
    vocabularySize: text.vocab_size ?? tokenCount,
  };
}

function layerKinds(text: Text, obstacles: Obstacles): LayerKind[] | null {
  const count = text.num_hidden_layers;
  const { layer_types: types } = text;
  if (types == null) {
    const hasWindow = (text.sliding_window ?? 0) > 0 && text.use_sliding_window !== false;
    obstacles.local(hasWindow, 'it has a sliding window and does not say which layers use it (layer_types)');
    return hasWindow || count > MAX_LAYER_ENTRIES ? null : Array.from({ length: count }, () => 'global' as const);
  }
  const kinds = types.map((type): LayerKind | null => {
    if (type === 'full_attention') return 'global';
    return type === 'sliding_attention' ? 'window' : null;
  });
  const unknown = [...new Set(types.filter((_, layer) => kinds[layer] === null))];
  obstacles.local(unknown.length > 0, `it has layers of the kind ${unknown.join(', ')}`);
  obstacles.local(types.length !== count, `layer_types has ${types.length} entries for ${count} layers`);
  return unknown.length > 0 || types.length !== count ? null : (kinds as LayerKind[]);
}

function readRope(
  text: Text,
  layers: readonly LayerKind[] | null,
  obstacles: Obstacles,
): Pick<KvShape, 'ropeBase' | 'ropeLayers'> {
  const { rope_parameters: common } = text;
  const forms = [common, common?.full_attention, common?.sliding_attention, text.rope_scaling];
  for (const form of forms.filter((each) => each != null)) {
    const type = form.rope_type ?? form.type ?? 'default';
    obstacles.local(type !== 'default', `its RoPE is scaled (${type}): a hand-off compares the base alone`);
    obstacles.local(form.mrope_section != null, 'its RoPE has sections (M-RoPE)');
  }
  const parts = [text, ...forms].map((form) => form?.partial_rotary_factor ?? 1);
  const part = parts.find((value) => value !== 1) ?? 1;
  obstacles.local(part !== 1, `RoPE turns ${part} of a head only`);
  const base = text.rope_theta ?? common?.rope_theta ?? common?.full_attention?.rope_theta ?? null;
  const ofWindows = text.rope_local_base_freq ?? common?.sliding_attention?.rope_theta ?? base;
  const bases =
    text.layer_rope_theta?.map((theta) => theta ?? 0) ??
    rotatedByFlags(text, base) ??
    (ofWindows === base ? null : [base ?? 0, ofWindows ?? 0]);
  if (bases === null) {
    obstacles.local(base === null, 'it does not say its RoPE base');
    return { ropeBase: base, ropeLayers: 'all' };
  }
  const different = new Set(bases.filter((theta) => theta !== 0));
  obstacles.local(different.size !== 1, `its layers have ${different.size} RoPE bases: a hand-off compares one`);
  const ropeBase = [...different][0] ?? null;
  if (bases.every((theta) => theta !== 0)) return { ropeBase, ropeLayers: 'all' };
  const onWindows = layers?.length === bases.length && layers.every((kind, at) => (kind === 'window') === (bases[at] !== 0));
  obstacles.local(!onWindows, 'layers with and without RoPE are not those with and without a window');
  return { ropeBase, ropeLayers: onWindows ? 'window' : null };
}

/** `no_rope_layers` has a 1 for every layer that does rotate. */
function rotatedByFlags(text: Text, base: number | null): number[] | null {
  if (text.no_rope_layers == null || base === null || text.no_rope_layers.length === 0) return null;
  return text.no_rope_layers.map((rotates) => (rotates === 1 || rotates === true ? base : 0));
}

/** K's weights must make as many elements as config.json promises. Reads the headers, never the weights. */
async function checkWeights(folder: string, shape: KvShape, obstacles: Obstacles): Promise<void> {
  const files = (await readdir(folder)).filter((name) => name.endsWith('.safetensors')).sort();
  obstacles.unsupported(files.length === 0, 'it holds no .safetensors file; other kinds of weights can run code and are refused');
  const expected = shape.kvHeads * shape.headDimension;
  for (const name of files) {
    for (const [tensor, dimensions] of readSafetensorsHeader(join(folder, name))) {
      if (!/(^|\.)layers\.\d+\.self_attn\.k_proj\.weight(_packed)?$/.test(tensor)) continue;
      if (dimensions[0] === expected) continue;
      obstacles.unsupported(true, `${tensor} makes ${dimensions[0] ?? 0} elements a token, config.json says ${expected}`);
      return;
    }
  }
}

const tensorSchema = z.looseObject({
  dtype: z.string(),
  shape: z.array(count).max(8),
  data_offsets: z.tuple([count, count]),
});

/** Shapes of the tensors of a safetensors file. Throws MODEL_LOAD_FAILED when the header is damaged. */
export function readSafetensorsHeader(path: string): Map<string, readonly number[]> {
  const reader = new HeaderReader(path, MAX_HEADER_BYTES + 8);
  try {
    const length = reader.uint64('the length of the header', MAX_HEADER_BYTES);
    const parts: Buffer[] = [];
    for (let left = length; left > 0;) {
      const block = Buffer.from(reader.bytes(Math.min(left, 128 * 1024), 'the header'));
      parts.push(block);
      left -= block.length;
    }
    const entries = z.record(z.string(), z.unknown()).parse(JSON.parse(Buffer.concat(parts).toString('utf8')));
    const tensors = new Map<string, readonly number[]>();
    for (const [name, value] of Object.entries(entries)) {
      if (name === '__metadata__') continue;
      const { shape, data_offsets: offsets } = tensorSchema.parse(value);
      if (offsets[1] > reader.size - length - 8) throw damaged(`${path} is truncated: ${name} ends after the file`);
      tensors.set(name, shape);
    }
    return tensors;
  } catch (error) {
    if (!(error instanceof SyntaxError || error instanceof z.ZodError)) throw error;
    throw damaged(`${path}: its header is damaged`, error);
  } finally {
    reader.close();
  }
}

const tokenizerSchema = z.looseObject({
  model: z.looseObject({
    type: z.string().nullish(),
    byte_fallback: z.boolean().nullish(),
    /** Id by token, or [token, score] in id order. Looked at by hand: it has up to millions of entries, and any key. */
    vocab: z.custom<object>((value) => typeof value === 'object' && value !== null),
  }),
  added_tokens: z.array(z.looseObject({ id: count, content: z.string() })).nullish(),
});

async function readTokens(path: string, obstacles: Obstacles): Promise<TokenList | null> {
  const raw = await readJson(path, MAX_TOKENIZER_BYTES);
  obstacles.local(raw === undefined, 'it has no tokenizer.json: its tokens cannot be compared');
  if (raw === undefined) return null;
  const { model, added_tokens: added } = parse(tokenizerSchema, raw, path);
  obstacles.local(
    model.type !== 'BPE' || model.byte_fallback === true,
    `its tokenizer is no byte-level BPE (${model.type ?? 'unknown'}): two of them cannot be compared`,
  );
  const pairs: [unknown, unknown][] = Array.isArray(model.vocab)
    ? model.vocab.map((entry: unknown, id) => [Array.isArray(entry) ? entry[0] : null, id])
    : Object.entries(model.vocab);
  for (const { id, content } of added ?? []) pairs.push([content, id]);
  const tokens: TokenList = [];
  for (const [text, id] of pairs) {
    if (typeof text !== 'string' || typeof id !== 'number' || !Number.isInteger(id) || id < 0 || id >= MAX_TOKENS) {
      throw damaged(`${path}: its vocabulary has an entry that is no token with an id below ${MAX_TOKENS}`);
    }
    while (tokens.length <= id) tokens.push(null);
    tokens[id] = text;
  }
  return tokens;
}

/** undefined when there is no such file: null is JSON. */
async function readJson(path: string, limit: number): Promise<unknown> {
  try {
    const text = await readText(path, limit);
    return text === null ? undefined : (JSON.parse(text) as unknown);
  } catch (error) {
    if (error instanceof SyntaxError) throw damaged(`${path} is no JSON`, error);
    if (error instanceof ServiceError && error.code === 'MESSAGE_TOO_LARGE') throw damaged(error.message, error);
    throw error;
  }
}

function parse<T>(schema: z.ZodType<T>, value: unknown, where: string): T {
  const parsed = schema.safeParse(value);
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  const key = issue === undefined || issue.path.length === 0 ? '' : `${issue.path.join('.')}: `;
  throw damaged(`${where}: ${key}${issue?.message ?? ''}`);
}
