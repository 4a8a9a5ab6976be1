import { lstat, readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { isMissing } from '../files.js';
import { type Manifest, type ManifestFile, PRIVATE_FOLDER } from './manifest.js';
import { digestOf } from './place.js';

/** Files in a folder that are looked at to find those the manifest does not name. */
const MAX_ENTRIES = 20_000;

export type FileState = 'ok' | 'missing' | 'wrong size' | 'wrong digest' | 'not a file';

export interface VerifiedFile {
  path: string;
  size: number;
  state: FileState;
}

export interface Verification {
  ok: boolean;
  files: VerifiedFile[];
  /** Weights in the folder that the manifest does not name: engines load every file of these kinds. */
  unlisted: string[];
}

/** Reads every file again and compares it with the manifest. */
export async function verify(
  manifest: Manifest,
  folder: string,
  signal: AbortSignal,
  onBytes: (count: number) => void,
): Promise<Verification> {
  const files: VerifiedFile[] = [];
  for (const file of manifest.files) {
    files.push({ path: file.path, size: file.size, state: await stateOf(file, folder, signal, onBytes) });
  }
  const unlisted = await unlistedWeights(manifest, folder);
  return { ok: files.every(({ state }) => state === 'ok'), files, unlisted };
}

async function stateOf(
  file: ManifestFile,
  folder: string,
  signal: AbortSignal,
  onBytes: (count: number) => void,
): Promise<FileState> {
  const path = join(folder, file.path);
  const state = await sizeState(path, file.size);
  if (state !== 'ok') return state;
  return (await digestOf(path, signal, onBytes)) === file.sha256 ? 'ok' : 'wrong digest';
}

/** How many files of a manifest are there with the right size: quick, and no proof of what is in them. */
export async function countPresent(manifest: Manifest, folder: string): Promise<number> {
  const states = await Promise.all(manifest.files.map((file) => sizeState(join(folder, file.path), file.size)));
  return states.filter((state) => state === 'ok').length;
}

async function sizeState(path: string, size: number): Promise<FileState> {
  try {
    const found = await lstat(path);
    if (!found.isFile()) return 'not a file';
    return found.size === size ? 'ok' : 'wrong size';
  } catch (error) {
    if (isMissing(error)) return 'missing';
    throw error;
  }
}

async function unlistedWeights(manifest: Manifest, folder: string): Promise<string[]> {
  const listed = new Set(manifest.files.map(({ path }) => path));
  const found: string[] = [];
  const pending = [''];
  let seen = 0;
  for (let below = pending.pop(); below !== undefined && seen < MAX_ENTRIES; below = pending.pop()) {
    for (const entry of await entriesOf(join(folder, below))) {
      seen += 1;
      const path = `${below}${entry.name}`;
      if (entry.isDirectory() && path !== PRIVATE_FOLDER) pending.push(`${path}/`);
      if (/\.(safetensors|gguf|bin|pt|pth)$/.test(entry.name) && !listed.has(path)) found.push(path);
    }
  }
  return found.sort();
}

async function entriesOf(folder: string) {
  try {
    return await readdir(folder, { withFileTypes: true });
  } catch (error) {
    if (isMissing(error)) return [];
    throw error;
  }
}
