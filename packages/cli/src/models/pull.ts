import { lstat, mkdir, stat, statfs } from 'node:fs/promises';
import { join } from 'node:path';
import { lockFolder, ServiceError, writeFileAtomic } from '@muser/service-kit';
import { CliError, EXIT } from '../exit.js';
import { formatBytes } from '../format.js';
import { isMissing } from '../files.js';
import { isFolder } from './catalogue.js';
import { type Manifest, type ManifestFile, PRIVATE_FOLDER, totalBytes } from './manifest.js';
import { digestOf, makeFolderFor, type OnBytes, placeLocal } from './place.js';
import { type ModelStores, realFileOfSize } from './stores.js';
import { DEFAULT_RETRIES, download, type RetryPolicy } from './transfer/download.js';
import { PartFile } from './transfer/part-file.js';
import { urlBelow, type WebSource } from './transfer/source.js';

/** Room that stays free on the disk beside what is pulled. */
const SPARE_BYTES = 64 * 1024 * 1024;

/** Where a model's files come from. `path` is the part of the address between the base and the file's own path. */
export type Source = { type: 'web'; web: WebSource; path: string } | { type: 'folder'; folder: string };

export type Origin = 'present' | 'huggingface' | 'ollama' | 'lmstudio' | 'folder' | 'download' | 'duplicate';

export interface PulledFile {
  path: string;
  size: number;
  sha256: string;
  /** Where the bytes came from; `present` when they were there already. */
  from: Origin;
}

/** What a pull tells while it runs. */
export interface PullEvents {
  /** Bytes that came or were found and checked, negative when some are thrown away. Ends at the size of the model. */
  onBytes(delta: number): void;
  onFile(file: PulledFile): void;
  onRetry(reason: string): void;
}

export interface PullOptions {
  manifest: Manifest;
  source: Source;
  /** Folder that the files are put in. */
  folder: string;
  /** Files that are fetched at once. */
  jobs: number;
  stores: ModelStores;
  events: PullEvents;
  signal: AbortSignal;
  retries?: RetryPolicy;
}

/**
 * Brings every file of a manifest into a folder. A file gets its name only when size and SHA-256 are the manifest's;
 * until then it is a part below `.muser`, which the next pull goes on with.
 *
 * @throws CliError; the reason of the signal when that is aborted.
 */
export async function pull(options: PullOptions): Promise<PulledFile[]> {
  const { manifest, folder } = options;
  const own = join(folder, PRIVATE_FOLDER);
  await mkdir(own, { recursive: true });
  const lock = await lockModel(own, manifest.name);
  try {
    const results = new Map<ManifestFile, Origin>();
    const settle = (file: ManifestFile, from: Origin): void => {
      results.set(file, from);
      options.events.onFile({ ...file, from });
    };
    const missing = await useWhatIsHere(options, settle);
    await checkSpace(options, missing);
    await fetchAll(options, missing, settle);
    await writeFileAtomic(join(own, 'manifest.json'), `${JSON.stringify(manifest, null, 2)}\n`, 0o644);
    return manifest.files.map((file) => ({ ...file, from: results.get(file) ?? 'present' }));
  } finally {
    await lock.release();
  }
}

async function lockModel(folder: string, name: string) {
  try {
    return await lockFolder(folder);
  } catch (error) {
    if (!(error instanceof ServiceError) || error.code !== 'STATE_LOCKED') throw error;
    throw new CliError(EXIT.failed, 'STATE_LOCKED', `${name} is being pulled by another process: ${error.message}`, {
      advice: 'Wait for it, or end it: the next pull goes on where it stopped.',
      cause: error,
    });
  }
}

/** Files that are in place already, or that another program has. Returns the others. */
async function useWhatIsHere(
  options: PullOptions,
  settle: (file: ManifestFile, from: Origin) => void,
): Promise<ManifestFile[]> {
  const missing: ManifestFile[] = [];
  for (const file of options.manifest.files) {
    options.signal.throwIfAborted();
    await makeFolderFor(options.folder, file.path);
    const from = (await isInPlace(options, file)) ? 'present' : await takeFromStore(options, file);
    if (from === null) missing.push(file);
    else settle(file, from);
  }
  return missing;
}

async function isInPlace(options: PullOptions, file: ManifestFile): Promise<boolean> {
  const path = join(options.folder, file.path);
  try {
    const found = await lstat(path);
    if (found.isDirectory()) {
      throw new CliError(EXIT.failed, 'PERMISSION_DENIED', `${path} is a folder where the model needs a file`);
    }
    if (!found.isFile() || found.size !== file.size) return false;
  } catch (error) {
    if (isMissing(error)) return false;
    throw error;
  }
  return counted(options, async (onBytes) => (await digestOf(path, options.signal, onBytes)) === file.sha256);
}

/** Bytes of a file that turns out to be another one do not count. */
async function counted(options: PullOptions, work: (onBytes: OnBytes) => Promise<boolean>): Promise<boolean> {
  let total = 0;
  const good = await work((count) => {
    total += count;
    options.events.onBytes(count);
  });
  if (!good) options.events.onBytes(-total);
  return good;
}

async function takeFromStore(options: PullOptions, file: ManifestFile): Promise<Origin | null> {
  for (const { store, path } of await options.stores.candidates(file)) {
    if (await take(options, file, path)) return store;
  }
  return null;
}

function take(options: PullOptions, file: ManifestFile, origin: string): Promise<boolean> {
  const temporary = join(options.folder, PRIVATE_FOLDER, `${file.sha256}.found`);
  const destination = join(options.folder, file.path);
  return counted(options, (onBytes) => placeLocal(origin, destination, temporary, file, options.signal, onBytes));
}

async function checkSpace(options: PullOptions, missing: readonly ManifestFile[]): Promise<void> {
  if (missing.length === 0) return;
  let needed = SPARE_BYTES;
  for (const file of missing) needed += file.size - (await sizeOf(partPath(options, file)));
  const { bavail, bsize } = await statfs(options.folder);
  const free = bavail * bsize;
  if (free >= needed) return;
  throw new CliError(
    EXIT.failed,
    'RESOURCE_EXHAUSTED',
    `${options.manifest.name} (${formatBytes(totalBytes(options.manifest))}) needs ${formatBytes(needed)} more on the disk of ${options.folder}, ${formatBytes(free)} are free`,
    { advice: 'Free some space, or pull into another folder with --to.' },
  );
}

/** Fetches with a bounded number of files at once. The first failure stops the others, whose parts stay. */
async function fetchAll(
  options: PullOptions,
  missing: readonly ManifestFile[],
  settle: (file: ManifestFile, from: Origin) => void,
): Promise<void> {
  const failed = new AbortController();
  const signal = AbortSignal.any([options.signal, failed.signal]);
  const groups = groupByDigest(missing);
  const worker = async (): Promise<void> => {
    for (let group = groups.shift(); group !== undefined; group = groups.shift()) {
      await fetchGroup({ ...options, signal }, group, settle);
    }
  };
  const workers = Array.from({ length: Math.min(options.jobs, groups.length) }, () =>
    worker().catch((error: unknown) => {
      failed.abort(error);
    }),
  );
  await Promise.all(workers);
  options.signal.throwIfAborted();
  if (failed.signal.aborted) throw failed.signal.reason;
}

function groupByDigest(files: readonly ManifestFile[]): ManifestFile[][] {
  const groups = new Map<string, ManifestFile[]>();
  for (const file of files) groups.set(file.sha256, [...(groups.get(file.sha256) ?? []), file]);
  return [...groups.values()];
}

/** Files of the same bytes: one is fetched, the others are made from it. */
async function fetchGroup(
  options: PullOptions,
  group: readonly ManifestFile[],
  settle: (file: ManifestFile, from: Origin) => void,
): Promise<void> {
  const [first, ...others] = group;
  if (first === undefined) return;
  if (options.source.type === 'folder') {
    await takeFromFolder(options, options.source.folder, first);
    settle(first, 'folder');
  } else {
    await fetchFile(options, options.source, first);
    settle(first, 'download');
  }
  for (const file of others) {
    if (!(await take(options, file, join(options.folder, first.path)))) throw changedMeanwhile(first);
    settle(file, 'duplicate');
  }
}

async function takeFromFolder(options: PullOptions, folder: string, file: ManifestFile): Promise<void> {
  const origin = join(folder, file.path);
  if (!(await isFolder(folder))) throw new CliError(EXIT.usage, 'NOT_FOUND', `there is no folder ${folder}`);
  const real = await realFileOfSize(origin, file.size);
  if (real !== null && (await take(options, file, real))) return;
  const there = await stat(origin).catch(() => null);
  if (there === null) throw new CliError(EXIT.failed, 'NOT_FOUND', `${origin} is not there`);
  const reason =
    there.size === file.size
      ? 'has another SHA-256 than the manifest says'
      : `has ${there.size} bytes, the manifest says ${file.size}`;
  throw new CliError(EXIT.failed, 'DIGEST_MISMATCH', `${origin} ${reason}`);
}

async function fetchFile(
  options: PullOptions,
  source: Extract<Source, { type: 'web' }>,
  file: ManifestFile,
): Promise<void> {
  const { events, signal } = options;
  const part = await PartFile.open(partPath(options, file), file, signal, (count) => events.onBytes(count));
  try {
    await download({
      source: source.web,
      url: urlBelow(source.web.base, `${source.path}${file.path}`),
      label: file.path,
      expected: file,
      part,
      retries: options.retries ?? DEFAULT_RETRIES,
      signal,
      onBytes: (delta) => events.onBytes(delta),
      onRetry: (reason) => events.onRetry(reason),
    });
  } catch (error) {
    // An empty part is of no use to the next pull.
    await (part.length === 0 ? part.discard() : part.close());
    throw error;
  }
  await part.publish(join(options.folder, file.path));
}

function partPath(options: PullOptions, file: ManifestFile): string {
  return join(options.folder, PRIVATE_FOLDER, `${file.sha256}.part`);
}

async function sizeOf(path: string): Promise<number> {
  try {
    return (await stat(path)).size;
  } catch (error) {
    if (isMissing(error)) return 0;
    throw error;
  }
}

function changedMeanwhile(file: ManifestFile): CliError {
  return new CliError(EXIT.failed, 'DIGEST_MISMATCH', `${file.path} was changed while the model was pulled`);
}
