import { fileURLToPath } from 'node:url';

export const MUSE_NANO = fileURLToPath(new URL('../../../../models/muse-nano/muse-nano-q8_0.gguf', import.meta.url));
/** The same model with 4-bit weights. */
export const MUSE_NANO_WIDE = fileURLToPath(
  new URL('../../../../models/muse-nano/muse-nano-wide-q4_k_m.gguf', import.meta.url),
);
/** The checkpoint that vLLM loads. */
export const MUSE_NANO_HF = fileURLToPath(new URL('../../../../models/muse-nano/hf', import.meta.url));
