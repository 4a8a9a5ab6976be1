import { access } from 'node:fs/promises';
import { join } from 'node:path';

import { checkModelFile, requireAddon, setEngineLog } from '@muser/metal';
import { fromEngineError, MuserError } from '@muser/protocol';
import { fileDigest, type Logger } from '@muser/service-kit';

import type { MilestoneName } from '../bridge/schema.js';
import { type ProducerConfig, VLLM_PYTHON } from '../config.js';
import type { PrefillBackend } from './backend.js';
import { checkpointDigest } from './checkpoint.js';
import { LlamaBackend } from './llama.js';
import { checkRope } from './rope-check.js';
import { VllmBackend } from './vllm.js';

/** Before the restarts of one hour. */
const RESTART_PAUSES_MS = [1_000, 10_000, 60_000];
/** Rows that nobody has fetched so long after compute has ended are given up. */
const LEASE_MS = 30_000;

export interface OpenOptions {
  readonly config: ProducerConfig;
  readonly logger: Logger;
  readonly signal: AbortSignal;
  /** Hears how far the start is, for engines that take long; again at every restart. */
  readonly onMilestone: (name: MilestoneName, milliseconds: number) => void;
}

/**
 * Loads the model of the configuration into the engine of the configuration.
 *
 * @throws MuserError ADDON_UNAVAILABLE, MODEL_LOAD_FAILED, MODEL_UNSUPPORTED, OUT_OF_MEMORY, ENGINE_FAILED,
 * DEADLINE_EXCEEDED; ServiceError NOT_FOUND
 */
export async function openBackend(options: OpenOptions): Promise<PrefillBackend> {
  return options.config.backend === 'vllm' ? openVllm(options) : openLlama(options);
}

async function openLlama({ config, logger, signal }: OpenOptions): Promise<LlamaBackend> {
  try {
    await requireAddon();
    // Before gigabytes are hashed: a file that was cut off is of no use.
    await checkModelFile(config.model);
  } catch (error) {
    throw fromEngineError(error);
  }
  const modelDigest = await fileDigest(config.model, config.stateDir, signal);
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

async function openVllm({ config, logger, signal, onMilestone }: OpenOptions): Promise<VllmBackend> {
  const { vllm, model, stateDir, maxPromptTokens, maxConcurrent } = config;
  const python = vllm.python ?? VLLM_PYTHON;
  await access(python).catch((cause: unknown) => {
    const message = `there is no ${python}: install vLLM with \`npm run vllm\`, or set vllm.python`;
    throw new MuserError('ENGINE_FAILED', message, { cause });
  });
  const modelDigest = await checkpointDigest(model, stateDir, signal);
  const backend = await VllmBackend.open(
    {
      modelPath: model,
      modelDigest,
      python,
      args: ['-m', 'muser_vllm.worker'],
      settings: vllmSettings(config),
      workerFile: join(stateDir, 'vllm-worker.json'),
      maxPromptTokens,
      maxConcurrent,
      startLimitMs: vllm.startLimitMs,
      hangLimitMs: vllm.hangLimitMs,
      restartPausesMs: RESTART_PAUSES_MS,
      idleUnloadMs: vllm.idleUnloadMs,
      memoryFloorBytes: vllm.memoryFloorBytes,
      onMilestone,
      logger: logger.child({ component: 'vllm' }),
    },
    signal,
  );
  try {
    await checkRope(backend, signal);
    return backend;
  } catch (error) {
    await backend.close();
    throw error;
  }
}

/** `settings` of bridge_schema.json, without the sockets. */
export function vllmSettings({ vllm, model, ...config }: ProducerConfig): Record<string, unknown> {
  return {
    modelPath: model,
    maxPromptTokens: config.maxPromptTokens,
    chunkTokens: config.chunkTokens,
    maxConcurrent: config.maxConcurrent,
    kvCacheBytes: vllm.kvCacheBytes,
    // Those of transfers that are computed and still being sent are among them.
    stagingBytes: vllm.windowStagingBytes ?? config.budgets.stagingBytes,
    leaseMs: LEASE_MS,
    tensorParallel: vllm.tensorParallel,
    pipelineParallel: vllm.pipelineParallel,
    attentionBackend: vllm.attentionBackend,
    enforceEager: vllm.enforceEager,
    gpuMemoryUtilization: vllm.gpuMemoryUtilization,
    threads: config.threads,
  };
}
