import type { LayerKind } from '@muser/protocol';
import { type GgufHeader, readGgufHeader, type Value } from './gguf-header.js';
import { damaged } from './header-reader.js';
import { checkShape, EXPERTS_NOTE, type KvShape, type ModelTraits, Obstacles } from './traits.js';

/** What a GGUF file's metadata say about its KV cache. `onToken` as in readGgufHeader. */
export function ggufTraits(path: string, onToken?: (id: number, bytes: Buffer) => void): ModelTraits {
  const header = readGgufHeader(path, onToken);
  const architecture = header.values.get('general.architecture');
  if (typeof architecture !== 'string') throw damaged(`${path}: general.architecture is missing`);
  const metadata = new Metadata(header, architecture, path);
  const obstacles = new Obstacles();
  lookForOtherKinds(metadata, obstacles);
  lookAtRope(metadata, obstacles);
  const shape = readShape(metadata, obstacles);
  if (shape !== null) {
    checkShape(shape, obstacles);
    checkKeyTensors(metadata, shape, obstacles);
  }
  return {
    format: 'gguf',
    path,
    architecture,
    weights: metadata.text('general.size_label'),
    shape,
    tokenCount: header.tokenCount,
    obstacles: obstacles.list,
    notes: [
      'GGUF does not say which layers rotate K, nor in which order its elements lie: the engine finds out, and every hand-off compares.',
      ...(metadata.positive('expert_count') ? [EXPERTS_NOTE] : []),
    ],
  };
}

/** Keys of the model's architecture, by the part after its name. */
class Metadata {
  constructor(
    readonly header: GgufHeader,
    private readonly architecture: string,
    private readonly path: string,
  ) {}

  value(name: string): Value | undefined {
    return this.header.values.get(`${this.architecture}.${name}`);
  }

  has(name: string): boolean {
    return this.header.keys.has(`${this.architecture}.${name}`);
  }

  hasGroup(prefix: string): boolean {
    const wanted = `${this.architecture}.${prefix}`;
    return [...this.header.keys].some((key) => key.startsWith(wanted));
  }

  text(key: string): string | null {
    const value = this.header.values.get(key);
    return typeof value === 'string' ? value : null;
  }

  /** A number, or null when it is not there. */
  number(name: string): number | null {
    const value = this.value(name);
    if (value === undefined && !this.has(name)) return null;
    if (typeof value === 'number') return value;
    throw damaged(`${this.path}: ${this.architecture}.${name} is no number`);
  }

  required(name: string): number {
    const value = this.number(name);
    if (value === null) throw damaged(`${this.path}: ${this.architecture}.${name} is missing`);
    return value;
  }

  /** Whether it is above 0, or differs between layers. */
  positive(name: string): boolean {
    const value = this.perLayer(name);
    return value === 'varies' || (value ?? 0) > 0;
  }

  /** A number that may be given once or once a layer; null when it is missing, `varies` when layers differ. */
  perLayer(name: string): number | 'varies' | null {
    const value = this.value(name);
    if (!Array.isArray(value)) return this.number(name);
    const [first] = value as readonly unknown[];
    if (typeof first !== 'number') throw damaged(`${this.path}: ${this.architecture}.${name} holds no numbers`);
    return value.every((element) => element === first) ? first : 'varies';
  }
}

function lookForOtherKinds(metadata: Metadata, obstacles: Obstacles): void {
  const { header } = metadata;
  const positive = (name: string): boolean => metadata.positive(name);
  const splits = header.values.get('split.count');
  obstacles.unsupported(typeof splits === 'number' && splits > 1, 'it is one of several files: join them with llama-gguf-split --merge');
  obstacles.unsupported(header.tensors.size === 0, 'it holds no weights');
  obstacles.unsupported(header.tokenCount === null, 'it holds no vocabulary');
  obstacles.unsupported(metadata.value('attention.causal') === false, 'it looks at later tokens too: an encoder, no generator');
  obstacles.unsupported(positive('pooling_type'), 'it makes embeddings, no text');
  obstacles.unsupported(metadata.has('decoder_start_token_id'), 'it is an encoder with a decoder, whose KV is of another kind');
  const tokenizer = metadata.text('tokenizer.ggml.model') ?? 'unknown';
  obstacles.local(tokenizer !== 'gpt2', `its tokenizer is no byte-level BPE (${tokenizer}): two of them cannot be compared`);
  const latent = ['attention.kv_lora_rank', 'attention.key_length_mla'].some((name) => metadata.has(name));
  obstacles.local(latent, 'its KV cache is compressed (MLA), which is no K and V per head');
  const recurrent = ['ssm.', 'wkv.', 'kda.', 'shortconv.'].some((group) => metadata.hasGroup(group));
  obstacles.local(recurrent, 'some layers keep a recurrent state (Mamba, RWKV, linear attention) instead of K and V');
  obstacles.local(positive('attention.shared_kv_layers'), 'layers share their KV');
  obstacles.local(positive('nextn_predict_layers'), 'it has layers that predict further tokens, with a KV of their own');
  obstacles.local(positive('num_loops'), 'it runs its layers several times');
  obstacles.local(metadata.hasGroup('attention.indexer.'), 'it attends to chosen tokens only (sparse attention)');
  obstacles.local(metadata.has('attention.chunk_size'), 'it attends in chunks');
}

function lookAtRope(metadata: Metadata, obstacles: Obstacles): void {
  const scaling = metadata.value('rope.scaling.type');
  obstacles.local(
    typeof scaling === 'string' && scaling !== 'none',
    `its RoPE is scaled (${String(scaling)}): a hand-off compares the base alone`,
  );
  const linear = metadata.number('rope.scale_linear') ?? 1;
  obstacles.local(linear !== 1 && linear !== 0, 'its RoPE is scaled (linear): a hand-off compares the base alone');
  const factors = [...metadata.header.tensors.keys()].some((name) => /(^|\.)rope_(freqs|factors)/.test(name));
  obstacles.local(factors, 'its RoPE has a factor for each frequency: a hand-off compares the base alone');
  obstacles.local(metadata.has('rope.dimension_sections'), 'its RoPE has sections (M-RoPE)');
  obstacles.local((metadata.number('attention.max_alibi_bias') ?? 0) > 0, 'it uses ALiBi instead of RoPE');
  const swa = metadata.number('rope.freq_base_swa');
  obstacles.local(
    swa !== null && swa !== (metadata.number('rope.freq_base') ?? 10_000),
    'window layers and global layers have different RoPE bases: a hand-off compares one',
  );
}

function readShape(metadata: Metadata, obstacles: Obstacles): KvShape | null {
  const queryHeads = metadata.perLayer('attention.head_count');
  const kvHeads = metadata.perLayer('attention.head_count_kv') ?? queryHeads;
  if (queryHeads === null || kvHeads === null) {
    obstacles.local(true, 'it has no attention heads');
    return null;
  }
  if (queryHeads === 'varies' || kvHeads === 'varies') {
    obstacles.local(true, 'the number of heads differs between layers');
    return null;
  }
  const byDefault = metadata.required('embedding_length') / queryHeads;
  const headDimension = metadata.number('attention.key_length') ?? byDefault;
  for (const name of ['attention.value_length', 'attention.key_length_swa', 'attention.value_length_swa']) {
    const other = metadata.number(name) ?? (name === 'attention.value_length' ? byDefault : headDimension);
    obstacles.local(other !== headDimension, `rows of K and V differ in length (${name} is ${other}, not ${headDimension})`);
  }
  for (const name of ['rope.dimension_count', 'rope.dimension_count_swa']) {
    const rotated = metadata.number(name) ?? headDimension;
    obstacles.local(rotated !== headDimension, `RoPE turns ${rotated} of ${headDimension} elements of a head only`);
  }
  const layerCount = metadata.required('block_count');
  const windowTokens = metadata.number('attention.sliding_window') ?? 0;
  const layers = layerKinds(metadata, layerCount, windowTokens, obstacles);
  return {
    layers,
    layerCount,
    queryHeads,
    kvHeads,
    headDimension,
    windowTokens: layers?.includes('window') === false ? 0 : windowTokens,
    ropeBase: metadata.number('rope.freq_base') ?? 10_000,
    ropeLayers: null,
    vocabularySize: metadata.header.tokenCount ?? 0,
  };
}

/** Which layers see a window only; null when the file has a window and does not say for which layers. */
function layerKinds(
  metadata: Metadata,
  count: number,
  windowTokens: number,
  obstacles: Obstacles,
): LayerKind[] | null {
  const name = 'attention.sliding_window_pattern';
  const pattern = metadata.value(name);
  if (windowTokens === 0) return uniform(count, () => false);
  if (typeof pattern === 'number') {
    return uniform(count, (layer) => pattern === 0 || layer % pattern < pattern - 1);
  }
  if (Array.isArray(pattern) && pattern.length === count) return uniform(count, (layer) => Boolean(pattern[layer]));
  obstacles.local(
    true,
    metadata.has(name)
      ? `${name} does not have one entry for each of the ${count} layers`
      : 'it has a sliding window and does not say which layers use it',
  );
  return null;
}

function uniform(count: number, isWindow: (layer: number) => boolean): LayerKind[] | null {
  // Damaged counts are reported by checkShape; they must not be allocated here.
  if (!Number.isInteger(count) || count < 0 || count > 1_024) return null;
  return Array.from({ length: count }, (_, layer) => (isWindow(layer) ? 'window' : 'global'));
}

/** K's weights must make as many elements as the metadata promise. */
function checkKeyTensors(metadata: Metadata, shape: KvShape, obstacles: Obstacles): void {
  const expected = shape.kvHeads * shape.headDimension;
  for (const [name, dimensions] of metadata.header.tensors) {
    if (!/^blk\.\d+\.attn_k\.weight$/.test(name) || dimensions[1] === expected) continue;
    obstacles.unsupported(true, `${name} makes ${dimensions[1] ?? 1} elements a token, the metadata say ${expected}`);
    return;
  }
}
