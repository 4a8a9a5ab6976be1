import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { access } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { CliError, EXIT } from '../exit.js';
import { DEFAULT_CHECKPOINT, DEFAULT_MODEL, VLLM_INSTALLER } from './paths.js';
import { childEnvironment, type Milestone } from './process.js';

export const ENGINE_NAMES = ['llama', 'vllm'] as const;
export type EngineName = (typeof ENGINE_NAMES)[number];

/** Loading tens of gigabytes, compiling and warming up. */
const VLLM_READY_LIMIT_MS = 900_000;

/** What a producer prefills with. */
export interface ProducerEngine {
  readonly name: EngineName;
  /** GGUF file for llama, folder of a checkpoint for vllm; absolute. */
  readonly model: string;
  /** How long its start may take; null: as long as any other process. */
  readonly readyLimitMs: number | null;
}

/**
 * Makes an engine ready to be started: installs vLLM when it is not there, and looks for the model.
 * @param model null: the small model of the repository
 */
export async function prepareEngine(
  name: EngineName,
  model: string | null,
  signal: AbortSignal,
): Promise<ProducerEngine> {
  if (name === 'llama') return { name, model: resolve(model ?? DEFAULT_MODEL), readyLimitMs: null };
  const folder = resolve(model ?? DEFAULT_CHECKPOINT);
  await access(join(folder, 'config.json')).catch((cause: unknown) => {
    throw new CliError(EXIT.usage, 'MODEL_LOAD_FAILED', `${folder} is not the folder of a checkpoint: no config.json`, {
      advice: 'vLLM loads Hugging Face folders; `muser models pull` fetches one.',
      cause,
    });
  });
  await installVllm(signal);
  return { name, model: folder, readyLimitMs: VLLM_READY_LIMIT_MS };
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
