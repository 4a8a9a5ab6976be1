import { readdir, realpath, stat } from 'node:fs/promises';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { isMissing } from '../files.js';
import type { ManifestFile } from './manifest.js';

/** Files looked at in a store that does not name them by digest. */
const MAX_ENTRIES = 20_000;
const MAX_DEPTH = 5;

/** A file of another program that may be the wanted one: it has the size; whether it has the digest is to be checked. */
export interface Candidate {
  store: 'huggingface' | 'ollama' | 'lmstudio';
  path: string;
}

/** Folders in which other programs keep models. */
export interface StoreFolders {
  huggingface: string[];
  ollama: string[];
  lmstudio: string[];
}

export function storeFolders(env: NodeJS.ProcessEnv): StoreFolders {
  const home = env['HOME'] ?? homedir();
  const hubCache = env['HF_HUB_CACHE'] || join(env['HF_HOME'] || join(home, '.cache', 'huggingface'), 'hub');
  return {
    huggingface: [hubCache],
    ollama: [env['OLLAMA_MODELS'] || join(home, '.ollama', 'models'), '/usr/share/ollama/.ollama/models'],
    lmstudio: [join(home, '.lmstudio', 'models'), join(home, '.cache', 'lm-studio', 'models')],
  };
}

/** Looks files up in other programs' stores. What cannot be read there is passed over: it only means a download. */
export class ModelStores {
  #sizes: Promise<Map<number, string[]>> | null = null;

  constructor(private readonly folders: StoreFolders) {}

  async candidates(file: ManifestFile): Promise<Candidate[]> {
    const found: Candidate[] = [];
    for (const path of await this.#huggingFaceBlobs(file.sha256)) found.push({ store: 'huggingface', path });
    for (const folder of this.folders.ollama) {
      found.push({ store: 'ollama', path: join(folder, 'blobs', `sha256-${file.sha256}`) });
    }
    for (const path of (await this.#lmStudioSizes()).get(file.size) ?? []) found.push({ store: 'lmstudio', path });
    const usable: Candidate[] = [];
    for (const candidate of found) {
      const path = await realFileOfSize(candidate.path, file.size);
      if (path !== null) usable.push({ ...candidate, path });
    }
    return usable;
  }

  /** `models--OWNER--NAME/blobs/SHA256`: large files are named by their SHA-256, small ones by another digest. */
  async #huggingFaceBlobs(sha256: string): Promise<string[]> {
    const paths: string[] = [];
    for (const folder of this.folders.huggingface) {
      for (const entry of await entriesOf(folder)) {
        if (entry.name.startsWith('models--')) paths.push(join(folder, entry.name, 'blobs', sha256));
      }
    }
    return paths;
  }

  /** LM Studio names files as the hub does, so they are found by size, once for all files. */
  #lmStudioSizes(): Promise<Map<number, string[]>> {
    this.#sizes ??= this.#walkLmStudio();
    return this.#sizes;
  }

  async #walkLmStudio(): Promise<Map<number, string[]>> {
    const sizes = new Map<number, string[]>();
    const pending = this.folders.lmstudio.map((path) => ({ path, depth: 0 }));
    let seen = 0;
    for (let folder = pending.pop(); folder !== undefined && seen < MAX_ENTRIES; folder = pending.pop()) {
      for (const entry of await entriesOf(folder.path)) {
        seen += 1;
        const path = join(folder.path, entry.name);
        if (entry.isDirectory() && folder.depth < MAX_DEPTH) pending.push({ path, depth: folder.depth + 1 });
        if (!entry.isFile()) continue;
        const { size } = await stat(path).catch(() => ({ size: -1 }));
        sizes.set(size, [...(sizes.get(size) ?? []), path]);
      }
    }
    return sizes;
  }
}

async function entriesOf(folder: string) {
  try {
    return await readdir(folder, { withFileTypes: true });
  } catch {
    return [];
  }
}

/** The path with symbolic links resolved; null when it is no file of this size. */
export async function realFileOfSize(path: string, size: number): Promise<string | null> {
  try {
    const real = await realpath(path);
    const found = await stat(real);
    return found.isFile() && found.size === size ? real : null;
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code;
    if (isMissing(error) || code === 'EACCES' || code === 'ELOOP') return null;
    throw error;
  }
}
