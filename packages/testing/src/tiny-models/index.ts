import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { Random } from '../random.js';
import { type Blueprint, blueprint, type TensorSpec, type TinyArchitecture } from './architectures.js';
import { ggufFile, type GgufValue, type Tensor } from './gguf-file.js';
import { safetensorsFile, toBf16 } from './safetensors-file.js';
import { tokenizerFiles, tokenizerMetadata } from './tokenizer.js';

export interface TinyModelOptions {
  readonly architecture: TinyArchitecture;
  readonly seed?: number;
  readonly ropeBase?: number;
  readonly kvHeads?: number;
  readonly layers?: number;
  /** Of gemma3, whose every second layer has a window. */
  readonly windowTokens?: number;
  /** Metadata of the GGUF file that are added, or take the place of others; after the architecture's name and a dot. */
  readonly metadata?: Readonly<Record<string, GgufValue>>;
  /** Further tensors of the GGUF file. */
  readonly tensors?: ReadonlyMap<string, Tensor>;
  /** Keys of config.json that are added, or take the place of others. */
  readonly config?: Readonly<Record<string, unknown>>;
}

/**
 * A language model of random weights, a few hundred kilobytes, as a GGUF file and as a Hugging Face folder: the same
 * weights (bf16 values, which both hold exactly), brought into each format as the architecture's converter does.
 */
export class TinyModel {
  private readonly plan: Blueprint;
  private readonly options: TinyModelOptions;
  private readonly weights: readonly { spec: TensorSpec; tensor: Tensor }[];

  constructor(options: TinyModelOptions) {
    const { architecture, seed = 1, ropeBase = 10_000, kvHeads = 2, layers = 4, windowTokens = 64 } = options;
    this.options = options;
    this.plan = blueprint(architecture, { ropeBase, kvHeads, layers, windowTokens });
    const random = new Random(seed);
    this.weights = this.plan.tensors.map((spec) => ({
      spec,
      tensor: { shape: spec.shape, values: valuesOf(spec, random) },
    }));
  }

  /** The bytes of the GGUF file. */
  gguf(): Buffer {
    const tensors = new Map(this.weights.map(({ spec, tensor }) => [spec.gguf, converted(spec, tensor)]));
    for (const [name, tensor] of this.options.tensors ?? []) tensors.set(name, tensor);
    const changes = Object.entries(this.options.metadata ?? {}).map(([key, value]): [string, GgufValue] => [
      `${this.options.architecture}.${key}`,
      value,
    ]);
    return ggufFile({ ...this.plan.metadata, ...Object.fromEntries(changes), ...tokenizerMetadata }, tensors);
  }

  /** Writes config.json, the tokenizer and the weights; the folder is made when it is not there. */
  async writeHuggingFace(folder: string): Promise<void> {
    await mkdir(folder, { recursive: true });
    const files = { ...tokenizerFiles(), 'config.json': { ...this.plan.config, ...this.options.config } };
    for (const [name, content] of Object.entries(files)) {
      await writeFile(join(folder, name), `${JSON.stringify(content, null, 2)}\n`);
    }
    const tensors = new Map(this.weights.map(({ spec, tensor }) => [spec.huggingFace, tensor]));
    await writeFile(join(folder, 'model.safetensors'), safetensorsFile(tensors));
  }
}

function valuesOf({ shape, kind, added = 0 }: TensorSpec, random: Random): Float32Array {
  const inputs = shape.at(-1) ?? 1;
  const count = shape.reduce((product, size) => product * size, 1);
  const spread = { matrix: 1 / Math.sqrt(inputs), norm: 0.1, bias: 0.5 }[kind];
  const middle = kind === 'norm' ? 1 - added : 0;
  return Float32Array.from({ length: count }, () => toBf16(middle + spread * gaussian(random)));
}

/** Box and Muller's way to normally distributed numbers. */
function gaussian(random: Random): number {
  return Math.sqrt(-2 * Math.log(1 - random.next())) * Math.cos(2 * Math.PI * random.next());
}

/** What llama.cpp's converter makes of a tensor. */
function converted({ interleavedHeads, added = 0 }: TensorSpec, { shape, values }: Tensor): Tensor {
  const result = values.map((value) => value + added);
  if (interleavedHeads === undefined) return { shape, values: result };
  const width = shape[1] ?? 1;
  const half = (shape[0] ?? 0) / interleavedHeads / 2;
  for (let row = 0; row < (shape[0] ?? 0); row += 1) {
    const head = Math.floor(row / (2 * half));
    const element = row % (2 * half);
    const to = head * 2 * half + (element < half ? 2 * element : 2 * (element - half) + 1);
    result.set(values.subarray(row * width, (row + 1) * width), to * width);
  }
  return { shape, values: result };
}
