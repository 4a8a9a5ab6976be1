import { probeAddon, setEngineLog } from '@muser/metal';
import { MuserError } from '@muser/protocol';
import { fileDigest, type Logger } from '@muser/service-kit';

import type { ProducerConfig } from '../config.js';
import type { PrefillBackend } from './backend.js';
import { LlamaBackend } from './llama.js';

/**
 * Loads the model of the configuration into the engine of the configuration.
 *
 * @throws MuserError ADDON_UNAVAILABLE, MODEL_LOAD_FAILED, MODEL_UNSUPPORTED, OUT_OF_MEMORY; ServiceError NOT_FOUND
 */
export async function openBackend(
  config: ProducerConfig,
  logger: Logger,
  signal: AbortSignal,
): Promise<PrefillBackend> {
  const [modelDigest] = await Promise.all([fileDigest(config.model, config.stateDir, signal), requireAddon()]);
  const engineLogger = logger.child({ component: 'llama.cpp' });
  setEngineLog((level, message) => engineLogger[level](message.trimEnd()));
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

/** In a child process first: a library that crashes when it is loaded must not take the reason with it. */
async function requireAddon(): Promise<void> {
  const probe = await probeAddon();
  if (!probe.ok) throw new MuserError('ADDON_UNAVAILABLE', `${probe.reason}; ${probe.advice}`);
}
