import { fileURLToPath } from 'node:url';

const root = new URL('../../../../', import.meta.url);

function inCheckout(path: string): string {
  return fileURLToPath(new URL(path, root));
}

/** The processes are started by path: nothing of ours imports them. */
export const ENTRIES = {
  coordinator: inCheckout('packages/coordinator/dist/main.js'),
  producer: inCheckout('packages/gb10-producer/dist/main.js'),
  decoder: inCheckout('packages/mac-decoder/dist/main.js'),
  addonProbe: inCheckout('native/metal/dist/probe-main.js'),
} as const;

/** Installs vLLM into this checkout. */
export const VLLM_INSTALLER = inCheckout('scripts/vllm-env.mjs');

export const DEFAULT_CHECKPOINT = inCheckout('models/muse-nano/hf');
export const DEFAULT_MODEL = inCheckout('models/muse-nano/muse-nano-q8_0.gguf');
export const HANDBOOK = inCheckout('models/muse-nano/handbook.md');
