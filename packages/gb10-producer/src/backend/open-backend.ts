import { fileDigest } from '@muser/service-kit';

import type { ProducerConfig } from '../config.js';
import type { PrefillBackend } from './backend.js';
import { LlamaBackend } from './llama.js';

/** Loads the model of the configuration into the engine of the configuration. */
export async function openBackend(config: ProducerConfig, signal: AbortSignal): Promise<PrefillBackend> {
  const modelDigest = await fileDigest(config.model, config.stateDir, signal);
  return LlamaBackend.open(
    {
      modelPath: config.model,
      modelDigest,
      chunkTokens: config.chunkTokens,
      maxPromptTokens: config.maxPromptTokens,
      maxConcurrent: config.maxConcurrent,
      threads: config.threads,
      flashAttention: config.flashAttention,
      kvType: config.kvType,
      tokensPerSecond: config.pacing,
    },
    signal,
  );
}
