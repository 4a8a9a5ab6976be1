import { readdir, realpath, stat } from 'node:fs/promises';
import { basename, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { ErrorCode } from '@muser/protocol';
import { CliError, EXIT, usageError } from '../exit.js';
import { explained } from '../explain.js';
import { isMissing } from '../files.js';
import { stateRoot } from '../state.js';
import { type Manifest, modelNameSchema, PRIVATE_FOLDER, readManifest } from './manifest.js';

const BUILT_IN = fileURLToPath(new URL('../../../../models/', import.meta.url));

/** Where models and the manifests that `muser models pin` writes are kept. */
export interface ModelFolders {
  /** Manifests that are part of muser. */
  builtIn: string;
  /** A folder for each model that was pulled. */
  models: string;
  /** Manifests of the user. */
  manifests: string;
}

/** MUSER_MODELS, else `models` in the state folder. */
export function modelFolders(env: NodeJS.ProcessEnv): ModelFolders {
  const given = env['MUSER_MODELS'];
  const models = given !== undefined && given !== '' ? resolve(given) : join(stateRoot(undefined, env), 'models');
  return { builtIn: BUILT_IN, models, manifests: join(models, 'manifests') };
}

export interface Catalogue {
  manifests: Manifest[];
  /** Files that should be manifests and cannot be used: they are reported, and keep nobody from the others. */
  damaged: DamagedManifest[];
}

export interface DamagedManifest {
  path: string;
  code: ErrorCode;
  message: string;
}

/** Every manifest that is known by name, built-in ones first. */
export async function knownManifests(folders: ModelFolders): Promise<Catalogue> {
  const found: Catalogue = { manifests: [], damaged: [] };
  for (const folder of [folders.builtIn, folders.manifests]) {
    for (const name of (await listFolder(folder)).filter((entry) => entry.endsWith('.json')).sort()) {
      const path = join(folder, name);
      try {
        found.manifests.push(await readManifest(path));
      } catch (error) {
        const failure = explained(error);
        if (failure === null) throw error;
        found.damaged.push({ path, code: failure.code, message: failure.message });
      }
    }
  }
  return found;
}

/** `what` is the name of a known manifest, or the path of one. */
export async function findManifest(what: string, folders: ModelFolders): Promise<Manifest> {
  if (what.endsWith('.json') || what.includes('/')) return readManifest(resolve(what));
  const { manifests, damaged } = await knownManifests(folders);
  const manifest = manifests.find(({ name }) => name === what);
  if (manifest !== undefined) return manifest;
  const broken = damaged.find(({ path }) => basename(path, '.json') === what);
  if (broken !== undefined) throw new CliError(EXIT.failed, broken.code, broken.message);
  const known = `Known are: ${manifests.map(({ name }) => name).join(', ')}.`;
  const unknown = damaged.length === 0 ? '' : ` ${damaged.length} damaged: \`muser models list\` names them.`;
  throw usageError(
    `no model is called "${what}"`,
    `${known}${unknown} \`muser models pin\` makes a manifest of a hub's repository.`,
  );
}

/** The folder that the files of a manifest belong in, unless the user names another. */
export function defaultFolder(manifest: Manifest, folders: ModelFolders): string {
  return join(folders.models, manifest.name);
}

/** Where a model's files lie on this machine: where it was pulled to, else in the checkout; null when nowhere. */
export async function installedFolder(manifest: Manifest, folders: ModelFolders): Promise<string | null> {
  const pulled = defaultFolder(manifest, folders);
  if (await isFolder(join(pulled, PRIVATE_FOLDER))) return pulled;
  return manifest.source.type === 'checkout' ? join(folders.builtIn, manifest.source.folder) : null;
}

/** For arguments that are a path or a model's name: the path when something lies there, else the model's folder. */
export async function pathOrModel(what: string, folders: ModelFolders): Promise<string> {
  try {
    return await realpath(what);
  } catch (error) {
    if (!isMissing(error)) throw error;
  }
  if (!modelNameSchema.safeParse(what).success) throw usageError(`there is nothing at ${what}`);
  const manifest = await findManifest(what, folders);
  const folder = await installedFolder(manifest, folders);
  if (folder !== null) return folder;
  throw usageError(`${what} is not on this machine`, `Fetch it with: muser models pull ${what}`);
}

export async function isFolder(path: string): Promise<boolean> {
  try {
    return (await stat(path)).isDirectory();
  } catch (error) {
    if (isMissing(error)) return false;
    throw error;
  }
}

async function listFolder(path: string): Promise<string[]> {
  try {
    return await readdir(path);
  } catch (error) {
    if (isMissing(error)) return [];
    throw error;
  }
}
