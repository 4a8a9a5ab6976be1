import { checkModelFile, loadModel, type Model, requireAddon } from '@muser/metal';
import { fromEngineError, MuserError } from '@muser/protocol';
import { ensurePrivateFolder, fileDigest, lockFolder, type Logger, startParts } from '@muser/service-kit';
import { randomUUID } from 'node:crypto';

import type { PrefillBackend } from '../backend/backend.js';
import { LlamaBackend } from '../backend/llama.js';
import { openBackend } from '../backend/open-backend.js';
import type { ProducerConfig } from '../config.js';
import { ownVersion } from '../producer.js';
import { ANSWER_TOKENS, Decoder } from './decoder.js';
import { qualificationPrompts, type QualificationPrompt } from './prompts.js';
import { qualify } from './qualify.js';
import type { QualificationRecord } from './record.js';
import { checkpointWeights, ggufWeights } from './weights.js';

/** What has been done, for people who wait. */
export type Progress =
  | { readonly stage: 'engine'; readonly name: string; readonly ms: number }
  | { readonly stage: 'loaded'; readonly backend: string; readonly model: string }
  | { readonly stage: 'prompt'; readonly number: number; readonly of: number; readonly tokens: number };

export interface RunOptions {
  /** The configuration that the producer runs with. */
  readonly config: ProducerConfig;
  /** The model that decodes: path of a GGUF file. */
  readonly gguf: string;
  readonly logger: Logger;
  readonly signal: AbortSignal;
  readonly onProgress: (progress: Progress) => void;
  /** Makes the producer's engine. */
  readonly open?: typeof openBackend;
}

interface Parts {
  readonly producer: PrefillBackend;
  readonly reference: PrefillBackend;
  readonly decoder: Decoder;
  readonly prompts: readonly QualificationPrompt[];
  readonly weights: { readonly producer: string; readonly reference: string };
}

/**
 * Loads both engines, qualifies, frees everything. The state folder is locked meanwhile: a producer that runs would share
 * the GPU's memory.
 * @throws MuserError, ServiceError of what failed; CANCELLED or the signal's reason
 */
export async function runQualification(options: RunOptions): Promise<QualificationRecord> {
  const { signal, onProgress } = options;
  const parts = await startParts((onClose) => openParts(options, onClose));
  try {
    return await qualify({
      ...parts,
      version: ownVersion(),
      cacheScope: randomUUID(),
      signal,
      onPrompt: (number, of, tokens) => onProgress({ stage: 'prompt', number, of, tokens }),
    });
  } finally {
    await parts.close();
  }
}

async function openParts(options: RunOptions, onClose: (close: () => unknown) => void): Promise<Parts> {
  const { config, gguf, logger, signal, onProgress, open = openBackend } = options;
  await ensurePrivateFolder(config.stateDir);
  const lock = await lockFolder(config.stateDir);
  onClose(() => lock.release());
  await checkModelFiles(config.backend === 'llama' ? [config.model, gguf] : [gguf]);
  const producer = await open({
    config,
    logger,
    signal,
    onMilestone: (name, ms) => onProgress({ stage: 'engine', name, ms }),
  });
  onClose(() => producer.close());
  onProgress({ stage: 'loaded', backend: producer.name, model: producer.model.identity.name });
  const model = await loadReference(gguf, config.threads, signal);
  onClose(() => model.close());
  const { geometry } = model.info;
  const prompts = qualificationPrompts((text) => model.tokenize(text, { special: true }), geometry.windowTokens);
  const longest = Math.max(...prompts.map(({ tokens }) => tokens.length));
  requireRoom(longest, producer);
  const { threads, flashAttention, chunkTokens } = config;
  const reference = await LlamaBackend.open(
    {
      modelPath: gguf,
      modelDigest: await fileDigest(gguf, config.stateDir, signal),
      chunkTokens,
      maxPromptTokens: longest,
      maxConcurrent: 1,
      threads,
      flashAttention,
      kvType: 'f16',
      tokensPerSecond: null,
    },
    signal,
  );
  onClose(() => reference.close());
  const decoder = await Decoder.create(model, { promptTokens: longest, chunkTokens, threads, flashAttention });
  onClose(() => decoder.close());
  onProgress({ stage: 'loaded', backend: reference.name, model: reference.model.identity.name });
  return { producer, reference, decoder, prompts, weights: await weightsOf(config, model, signal) };
}

/** Before the producer's engine is loaded, which may take minutes. */
async function checkModelFiles(paths: readonly string[]): Promise<void> {
  for (const path of paths) {
    try {
      await requireAddon();
      await checkModelFile(path);
    } catch (error) {
      const { code, message } = fromEngineError(error);
      throw new MuserError(code, code === 'ADDON_UNAVAILABLE' ? message : `${path}: ${message}`, { cause: error });
    }
  }
}

async function loadReference(path: string, threads: number, signal: AbortSignal): Promise<Model> {
  try {
    return await loadModel(path, { threads, signal });
  } catch (error) {
    throw fromEngineError(error);
  }
}

async function weightsOf(config: ProducerConfig, reference: Model, signal: AbortSignal): Promise<Parts['weights']> {
  if (config.backend === 'vllm') {
    return { producer: await checkpointWeights(config.model), reference: ggufWeights(reference.info) };
  }
  // Its weights are in memory already, and are shared.
  const model = await loadReference(config.model, config.threads, signal);
  const producer = ggufWeights(model.info);
  model.close();
  return { producer, reference: ggufWeights(reference.info) };
}

function requireRoom(longest: number, { limits }: PrefillBackend): void {
  const wanted = longest + ANSWER_TOKENS;
  if (limits.maxPromptTokens >= wanted) return;
  const message = `the longest prompt has ${longest} tokens, and this producer takes ${limits.maxPromptTokens}: raise maxPromptTokens to ${wanted}`;
  throw new MuserError('CONFIG_INVALID', message);
}
