import { readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { MAX_PROMPT_TOKENS, type LayerKind } from '@muser/protocol';
import { z } from 'zod';
import { CliError, EXIT, usageError } from '../exit.js';
import { readText } from '../files.js';
import { findManifest, installedFolder, isFolder, modelFolders } from '../models/catalogue.js';
import { hfTraits } from '../models/check/hf-traits.js';
import { verdictOf } from '../models/check/traits.js';
import type { PlannedModel } from './plan.js';

const MAX_CONFIG_BYTES = 4 * 1024 * 1024;

/** Published figures, for a plan before the model is here: local, local, local, global, thirteen times. */
const MUSE_GLIMMER_30B: PlannedModel = {
  name: 'muse-glimmer-30b',
  // The larger of the two published NVFP4 checkpoints has 25.4 GB; plans are made for the one in docs/MODELS.md.
  weightBytes: 23_400_000_000,
  layers: Array.from({ length: 52 }, (_, layer): LayerKind => (layer % 4 === 3 ? 'global' : 'window')),
  kvHeads: 2,
  headDimension: 128,
  windowTokens: 2_048,
  contextTokens: 131_072,
  nvfp4: true,
};

/** A Hugging Face folder, a manifest or its name, or `muse-glimmer-30b` for the published figures. */
export async function findPlannedModel(what: string, env: NodeJS.ProcessEnv): Promise<PlannedModel> {
  if (what === MUSE_GLIMMER_30B.name) return MUSE_GLIMMER_30B;
  if (await isFolder(what)) return readFolder(what);
  const folders = modelFolders(env);
  const manifest = await findManifest(what, folders);
  const folder = await installedFolder(manifest, folders);
  const config = manifest.files.find(({ path }) => path.split('/').at(-1) === 'config.json');
  if (config === undefined)
    throw usageError(`${manifest.name} has no config.json: a producer needs a Hugging Face model`);
  if (folder === null) throw usageError(`${manifest.name} is not here`, `muser models pull ${what}`);
  return { ...(await readFolder(join(folder, config.path, '..'))), name: manifest.name };
}

async function readFolder(folder: string): Promise<PlannedModel> {
  const { traits } = await hfTraits(folder);
  const { shape, obstacles } = traits;
  if (shape?.layers == null || verdictOf(obstacles) !== 'remote-capable') {
    const reasons = obstacles.map(({ reason }) => reason).join('; ');
    throw new CliError(EXIT.failed, 'MODEL_UNSUPPORTED', `${folder} cannot be prefilled remotely: ${reasons}`);
  }
  return {
    name: folder,
    weightBytes: await weightBytes(folder),
    layers: shape.layers,
    kvHeads: shape.kvHeads,
    headDimension: shape.headDimension,
    windowTokens: shape.windowTokens,
    contextTokens: await contextTokens(folder),
    nvfp4: /nvfp4|fp4/i.test(traits.weights ?? ''),
  };
}

async function weightBytes(folder: string): Promise<number> {
  const names = (await readdir(folder)).filter((name) => name.endsWith('.safetensors'));
  const sizes = await Promise.all(names.map(async (name) => (await stat(join(folder, name))).size));
  return sizes.reduce((sum, size) => sum + size, 0);
}

const contextSchema = z.object({ max_position_embeddings: z.number().int().min(2).nullish() });
const configSchema = contextSchema.extend({ text_config: contextSchema.nullish() });

async function contextTokens(folder: string): Promise<number> {
  const parsed = configSchema.safeParse(
    JSON.parse((await readText(join(folder, 'config.json'), MAX_CONFIG_BYTES)) ?? '{}'),
  );
  if (!parsed.success) {
    throw new CliError(EXIT.failed, 'MODEL_LOAD_FAILED', `${folder}: max_position_embeddings is no length`);
  }
  const config = parsed.data;
  const stated = config.text_config?.max_position_embeddings ?? config.max_position_embeddings;
  return Math.min(stated ?? MAX_PROMPT_TOKENS, MAX_PROMPT_TOKENS);
}
