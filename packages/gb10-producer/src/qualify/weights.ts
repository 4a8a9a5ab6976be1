import { join } from 'node:path';

import type { ModelInfo } from '@muser/metal';
import { MuserError } from '@muser/protocol';
import { readSmallFile } from '@muser/service-kit';

const MAX_CONFIG_BYTES = 1 << 20;

/** llama.cpp's numbers for what most of a file's tensors are (`general.file_type`). */
const FILE_TYPES: Readonly<Record<string, string>> = {
  0: 'f32',
  1: 'f16',
  2: 'q4_0',
  3: 'q4_1',
  7: 'q8_0',
  8: 'q5_0',
  9: 'q5_1',
  10: 'q2_k',
  11: 'q3_k_s',
  12: 'q3_k_m',
  13: 'q3_k_l',
  14: 'q4_k_s',
  15: 'q4_k_m',
  16: 'q5_k_s',
  17: 'q5_k_m',
  18: 'q6_k',
  25: 'iq4_nl',
  30: 'iq4_xs',
  32: 'bf16',
};

/** Names of weight types as transformers writes them. */
const DTYPES: Readonly<Record<string, string>> = { bfloat16: 'bf16', float16: 'f16', float32: 'f32' };

/** Weight type of a GGUF file: "q4_k_m". */
export function ggufWeights({ metadata }: Pick<ModelInfo, 'metadata'>): string {
  const type = metadata['general.file_type'] ?? 'unknown';
  return FILE_TYPES[type] ?? `gguf type ${type}`;
}

/** Weight type of a Hugging Face checkpoint: "bf16", "nvfp4". @throws MuserError MODEL_LOAD_FAILED */
export async function checkpointWeights(folder: string): Promise<string> {
  const config = await readConfig(join(folder, 'config.json'));
  const { quantization_config: quantization, dtype, torch_dtype: older } = config;
  if (isObject(quantization)) {
    // vLLM's formats name it in different places: `format` (compressed-tensors) and `quant_algo` (ModelOpt).
    const names = [quantization['format'], quantization['quant_algo'], quantization['quant_method']];
    const known = names.filter((one) => typeof one === 'string').map((one) => one.toLowerCase());
    return known.some((one) => one.includes('nvfp4')) ? 'nvfp4' : (known[0] ?? 'unknown');
  }
  const type = [dtype, older].find((one) => typeof one === 'string') ?? 'unknown';
  return DTYPES[type] ?? type;
}

async function readConfig(path: string): Promise<Record<string, unknown>> {
  try {
    const value: unknown = JSON.parse((await readSmallFile(path, MAX_CONFIG_BYTES)) ?? '');
    if (isObject(value)) return value;
    throw new Error('no object');
  } catch (cause) {
    throw new MuserError('MODEL_LOAD_FAILED', `${path} cannot be read as a model's configuration`, { cause });
  }
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
