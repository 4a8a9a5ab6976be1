import { access } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';
import { CliError, EXIT } from '../exit.js';
import { findManifest, installedFolder, isFolder, knownManifests, modelFolders } from '../models/catalogue.js';
import { type Manifest, modelNameSchema, repositorySchema } from '../models/manifest.js';
import { storeFolders } from '../models/stores.js';
import { readText } from '../files.js';

/** Files of a checkpoint are in the folder of this one. */
const CONFIG = 'config.json';
const MAX_REF_BYTES = 1024;
const COMMIT = /^[0-9a-f]{40}$/;

/**
 * The folder of a checkpoint that vLLM is to load.
 * @param what a folder, the name of a model, or a hub's OWNER/NAME
 * @throws CliError what is missing, with the command that fetches it
 */
export async function findCheckpoint(what: string, env: NodeJS.ProcessEnv): Promise<string> {
  if (await isFolder(what)) return usable(resolve(what));
  const folders = modelFolders(env);
  if (modelNameSchema.safeParse(what).success) return pulled(await findManifest(what, folders), env);
  if (!repositorySchema.safeParse(what).success) throw missing(`there is no folder ${what}`, HELP);
  const { manifests } = await knownManifests(folders);
  const manifest = manifests.find(({ source }) => source.type === 'hub' && sameRepository(source.repository, what));
  if (manifest !== undefined) return pulled(manifest, env);
  const cached = await huggingFaceSnapshot(what, env);
  if (cached !== null) return usable(cached);
  const name = (what.split('/')[1] ?? '').toLowerCase();
  throw missing(
    `${what} is not on this machine`,
    `Fetch it with: muser models pin ${what}@main && muser models pull ${name}`,
  );
}

const HELP = 'Name the folder of a checkpoint, a model of `muser models list`, or the OWNER/NAME of one that is here.';

async function pulled(manifest: Manifest, env: NodeJS.ProcessEnv): Promise<string> {
  const folder = await installedFolder(manifest, modelFolders(env));
  if (folder === null) {
    throw missing(`${manifest.name} is not on this machine`, `Fetch it with: muser models pull ${manifest.name}`);
  }
  const config = manifest.files.find(({ path }) => path.split('/').at(-1) === CONFIG);
  if (config === undefined) throw missing(`${manifest.name} has no ${CONFIG}: it is no checkpoint for vLLM`, HELP);
  return usable(join(folder, dirname(config.path)));
}

/** Hubs take no notice of case. */
function sameRepository(a: string, b: string): boolean {
  return a.toLowerCase() === b.toLowerCase();
}

/** What `main` named when Hugging Face's own tools last fetched it. */
async function huggingFaceSnapshot(repository: string, env: NodeJS.ProcessEnv): Promise<string | null> {
  for (const cache of storeFolders(env).huggingface) {
    const folder = join(cache, `models--${repository.replace('/', '--')}`);
    const commit = (await readText(join(folder, 'refs', 'main'), MAX_REF_BYTES))?.trim() ?? null;
    if (commit === null || !COMMIT.test(commit)) continue;
    const snapshot = join(folder, 'snapshots', commit);
    if (await isFolder(snapshot)) return snapshot;
  }
  return null;
}

async function usable(folder: string): Promise<string> {
  try {
    await access(join(folder, CONFIG));
    return folder;
  } catch (cause) {
    throw missing(`${folder} is not the folder of a checkpoint: no ${CONFIG}`, HELP, cause);
  }
}

function missing(message: string, advice: string, cause?: unknown): CliError {
  return new CliError(EXIT.usage, 'MODEL_LOAD_FAILED', message, { advice, cause });
}
