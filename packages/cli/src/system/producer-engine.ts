import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { totalmem } from 'node:os';
import { resolve } from 'node:path';
import { CliError, EXIT } from '../exit.js';
import { findPlannedModel } from '../producer-plan/models.js';
import { planProducer, type ProducerPlan } from '../producer-plan/plan.js';
import { findCheckpoint } from './checkpoint.js';
import { DEFAULT_CHECKPOINT, DEFAULT_MODEL, VLLM_INSTALLER } from './paths.js';
import { childEnvironment, type Milestone } from './process.js';

export const ENGINE_NAMES = ['llama', 'vllm'] as const;
export type EngineName = (typeof ENGINE_NAMES)[number];

/** Loading tens of gigabytes, compiling and warming up. */
const VLLM_READY_LIMIT_MS = 900_000;
/** The producer's own limits when no plan gives others. */
const DEFAULT_PROMPT_TOKENS = 32_768;
const DEFAULT_REQUESTS = 4;
/** Where there is a GPU, scripts/vllm-env.mjs installs vLLM for it. */
const NVIDIA_DRIVER = '/proc/driver/nvidia/version';

/** What a producer prefills with. */
export interface ProducerEngine {
  readonly name: EngineName;
  /** GGUF file for llama, folder of a checkpoint for vllm; absolute. */
  readonly model: string;
  /** How long its start may take; null: as long as any other process. */
  readonly readyLimitMs: number | null;
  /** Further variables of the producer's process: limits and memory, as `muser producer plan` names them. */
  readonly environment: Readonly<Record<string, string>>;
}

export interface EngineWishes {
  readonly name: EngineName;
  /** null: the small model of the repository. */
  readonly model: string | null;
  /** For vllm on a GPU, when the whole machine is the producer's: its memory is planned. null: it shares the machine. */
  readonly alone: { readonly promptTokens: number | null; readonly requests: number } | null;
}

/** Makes an engine ready to be started: looks for the model, plans its memory, installs vLLM when it is not there. */
export async function prepareEngine(wishes: EngineWishes, signal: AbortSignal): Promise<ProducerEngine> {
  const { name, model } = wishes;
  if (name === 'llama') {
    return { name, model: resolve(model ?? DEFAULT_MODEL), readyLimitMs: null, environment: {} };
  }
  const folder = model === null ? DEFAULT_CHECKPOINT : await findCheckpoint(model, process.env);
  const environment = await plannedEnvironment(folder, wishes);
  await installVllm(signal);
  return { name, model: folder, readyLimitMs: VLLM_READY_LIMIT_MS, environment };
}

async function plannedEnvironment(folder: string, { alone }: EngineWishes): Promise<Record<string, string>> {
  const onGpu = alone !== null && existsSync(NVIDIA_DRIVER);
  const plan = planProducer({
    model: await findPlannedModel(folder, process.env),
    memoryBytes: totalmem(),
    promptTokens: alone?.promptTokens ?? (onGpu ? null : DEFAULT_PROMPT_TOKENS),
    requests: alone?.requests ?? DEFAULT_REQUESTS,
  });
  return onGpu ? gpuEnvironment(plan) : sharedEnvironment(plan);
}

function gpuEnvironment(plan: ProducerPlan): Record<string, string> {
  if (plan.problem !== null) {
    throw new CliError(EXIT.failed, 'OUT_OF_MEMORY', `the memory of this machine is not enough: ${plan.problem}`, {
      advice: 'Lower --prompt-tokens or --requests; `muser producer plan` shows what takes how much.',
    });
  }
  return Object.fromEntries([...plan.producer, ...plan.environment].map(({ name, value }) => [name, value]));
}

/** The plan's shares for a GPU's machine mean nothing here; what is held for prompts is the same. */
function sharedEnvironment({ promptTokens, requests, memory }: ProducerPlan): Record<string, string> {
  return {
    MUSER_PRODUCER_MAX_PROMPT_TOKENS: String(promptTokens),
    MUSER_PRODUCER_MAX_CONCURRENT: String(requests),
    MUSER_PRODUCER_VLLM_KV_CACHE_BYTES: String(memory.kvCache),
  };
}

/** Says nothing when it is installed. Its progress goes to standard error. */
async function installVllm(signal: AbortSignal): Promise<void> {
  const child = spawn(process.execPath, [VLLM_INSTALLER, '--quiet'], {
    stdio: ['ignore', 2, 2],
    env: childEnvironment(process.env),
    signal,
  });
  const [code] = (await once(child, 'exit').catch((error: unknown) => {
    throw signal.aborted ? signal.reason : error;
  })) as [number | null];
  if (code === 0) return;
  throw new CliError(EXIT.failed, 'ENGINE_FAILED', 'vLLM could not be installed', {
    advice: 'The lines above say why; `npm run vllm` tries again.',
  });
}

const STAGES: Readonly<Record<string, string>> = {
  environment: 'vLLM is imported',
  weights: 'the weights are loaded',
  kv_cache: 'the KV cache is allocated',
  warm_up: 'the engine is warm',
  ready: 'vLLM is ready',
};

export function describeMilestone({ milestone, ms }: Milestone): string {
  return `${STAGES[milestone] ?? milestone} (${(ms / 1000).toFixed(1)} s)`;
}
