import { mkdir } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';
import { writeFileAtomic } from '@muser/service-kit';
import { CliError, EXIT, usageError } from '../exit.js';
import { formatBytes, formatTable } from '../format.js';
import { defaultFolder, findManifest, installedFolder, isFolder, knownManifests, modelFolders } from './catalogue.js';
import { pin, resolvePath } from './hub.js';
import { type Manifest, modelNameSchema, PRIVATE_FOLDER, readManifest, repositorySchema, totalBytes } from './manifest.js';
import { printable } from '../terminal.js';
import { ByteProgress } from './progress.js';
import { pull, type PulledFile, type Source } from './pull.js';
import { runCommand } from './run.js';
import { ModelStores, storeFolders } from './stores.js';
import { hubSource, isPrivate, mirrorSource, type WebSource } from './transfer/source.js';
import { countPresent, verify, type Verification } from './verify.js';

export interface PullCommand {
  model: string;
  from: string | undefined;
  to: string | undefined;
  jobs: number;
  json: boolean;
}

export interface PullResult {
  name: string;
  folder: string;
  bytes: number;
  files: PulledFile[];
}

export async function pullCommand(command: PullCommand): Promise<PullResult> {
  return runCommand(
    command.json,
    async ({ signal, output }) => {
      const folders = modelFolders(process.env);
      const manifest = await findManifest(command.model, folders);
      const folder = command.to === undefined ? defaultFolder(manifest, folders) : resolve(command.to);
      const bytes = totalBytes(manifest);
      const progress = new ByteProgress(output, manifest.name, bytes);
      const files = await pull({
        manifest,
        folder,
        source: sourceOf(manifest, command.from, folders.builtIn),
        jobs: command.jobs,
        stores: new ModelStores(storeFolders(process.env)),
        signal,
        events: {
          onBytes: (delta) => progress.add(delta),
          onFile: (file) => output.line(`${file.path}  ${formatBytes(file.size)}  ${ORIGINS[file.from]}`),
          onRetry: (reason) => output.line(reason),
        },
      });
      return { name: manifest.name, folder, bytes, files };
    },
    ({ name, folder, bytes, files }) =>
      `${name}: ${files.length} files, ${formatBytes(bytes)}, every digest is right, in ${folder}`,
  );
}

const ORIGINS: Record<PulledFile['from'], string> = {
  present: 'was here',
  huggingface: 'from the Hugging Face cache',
  ollama: "from Ollama's store",
  lmstudio: "from LM Studio's folder",
  folder: 'from the folder',
  download: 'fetched',
  duplicate: 'same as another file',
};

/** `hub`, an address, or a folder; by default where the manifest says. */
function sourceOf(manifest: Manifest, from: string | undefined, builtIn: string): Source {
  const { source } = manifest;
  if (from === undefined && source.type === 'checkout') {
    return { type: 'folder', folder: join(builtIn, source.folder) };
  }
  if (from === undefined || from === 'hub') {
    if (source.type !== 'hub') throw usageError(`${manifest.name} is on no hub`, 'It is part of muser: leave --from out.');
    return { type: 'web', web: hubSource(process.env), path: resolvePath(source.repository, source.revision) };
  }
  if (/^https?:\/\//i.test(from)) return { type: 'web', web: mirrorSource(from), path: '' };
  return { type: 'folder', folder: resolve(from) };
}

export interface ListedModel {
  name: string;
  bytes: number;
  files: number;
  /** Files that are there with the right size. */
  present: number;
  folder: string | null;
  source: string;
}

/** Returns whether every manifest is sound. */
export async function listCommand(command: { json: boolean }): Promise<boolean> {
  const { damaged } = await runCommand(
    command.json,
    async ({ output }) => {
      const folders = modelFolders(process.env);
      const models: ListedModel[] = [];
      const { manifests, damaged } = await knownManifests(folders);
      for (const { message, code } of damaged) output.line(printable(`${message} (${code})`));
      for (const manifest of manifests) {
        const folder = await installedFolder(manifest, folders);
        models.push({
          name: manifest.name,
          bytes: totalBytes(manifest),
          files: manifest.files.length,
          present: folder === null ? 0 : await countPresent(manifest, folder),
          folder,
          source: sourceText(manifest),
        });
      }
      return { models, damaged };
    },
    ({ models }) =>
      formatTable(
        [
          ['model', 'size', 'here', 'source', 'folder'],
          ...models.map(({ name, bytes, files, present, source, folder }) => [
            name,
            formatBytes(bytes),
            present === files ? 'yes' : present === 0 ? 'no' : `${present} of ${files} files`,
            source,
            folder ?? '-',
          ]),
        ],
        [1],
      ),
  );
  return damaged.length === 0;
}

function sourceText({ source }: Manifest): string {
  return source.type === 'checkout' ? 'part of muser' : `${source.repository}@${source.revision.slice(0, 12)}`;
}

export async function verifyCommand(command: { model: string; json: boolean }): Promise<Verification> {
  return runCommand(
    command.json,
    async ({ signal, output }) => {
      const { manifest, folder } = await whatToVerify(command.model);
      const progress = new ByteProgress(output, manifest.name, totalBytes(manifest));
      const result = await verify(manifest, folder, signal, (count) => progress.add(count));
      return { name: manifest.name, folder, ...result };
    },
    ({ name, folder, files, unlisted, ok }) =>
      [
        formatTable(files.map(({ path, size, state }) => [path, formatBytes(size), state]), [1]),
        ...unlisted.map((path) => `${path}  is not in the manifest`),
        ok ? `${name} in ${folder}: every file is right` : `${name} in ${folder}: pull it again to mend it`,
      ].join('\n'),
  );
}

/** A folder that was pulled to has its manifest in it; a name stands for where that model lies. */
async function whatToVerify(model: string): Promise<{ manifest: Manifest; folder: string }> {
  const path = resolve(model);
  const kept = join(path, PRIVATE_FOLDER, 'manifest.json');
  if (await isFolder(join(path, PRIVATE_FOLDER))) return { manifest: await readManifest(kept), folder: path };
  const folders = modelFolders(process.env);
  const manifest = await findManifest(model, folders);
  const folder = await installedFolder(manifest, folders);
  if (folder !== null) return { manifest, folder };
  throw new CliError(EXIT.failed, 'NOT_FOUND', `${manifest.name} is not on this machine`, {
    advice: `Fetch it with: muser models pull ${model}`,
  });
}

export interface PinCommand {
  /** REPOSITORY@REVISION */
  repository: string;
  from: string;
  name: string | undefined;
  include: string[];
  output: string | undefined;
  json: boolean;
}

export async function pinCommand(command: PinCommand): Promise<void> {
  await runCommand(
    command.json,
    async ({ signal, output }) => {
      const { repository, revision, name } = await parsePin(command);
      const folders = modelFolders(process.env);
      const path = command.output === undefined ? join(folders.manifests, `${name}.json`) : resolve(command.output);
      const manifest = await pin({
        repository,
        revision,
        name,
        include: command.include,
        source: pinSource(command.from),
        signal,
        onFile: (file) => output.status(file),
      });
      await mkdir(dirname(path), { recursive: true });
      await writeFileAtomic(path, `${JSON.stringify(manifest, null, 2)}\n`, 0o644);
      return { manifest: path, name, files: manifest.files.length, bytes: totalBytes(manifest), source: manifest.source };
    },
    ({ manifest, name, files, bytes }) =>
      `${manifest}: ${files} files, ${formatBytes(bytes)}\nFetch them with: muser models pull ${command.output === undefined ? name : manifest}`,
  );
}

function pinSource(from: string): WebSource {
  const source = from === 'hub' ? hubSource(process.env) : mirrorSource(from);
  if (isPrivate(source.base)) return source;
  // Digests are believed as they come, so nobody on the way may change them.
  throw usageError(`a manifest is not made over plain http from ${source.base.host}`, 'Use an https:// address.');
}

async function parsePin(command: PinCommand): Promise<{ repository: string; revision: string; name: string }> {
  const at = command.repository.indexOf('@');
  const repository = command.repository.slice(0, at);
  const revision = command.repository.slice(at + 1);
  if (at < 0 || !repositorySchema.safeParse(repository).success || !/^(?!.*\.\.)[\w./-]{1,200}$/.test(revision)) {
    throw usageError(`"${command.repository}" is not OWNER/NAME@REVISION`);
  }
  const name = command.name ?? (repository.split('/')[1] ?? '').toLowerCase();
  const problem = modelNameSchema.safeParse(name).error?.issues[0]?.message;
  if (problem !== undefined) throw usageError(`the name "${name}" ${problem}`, 'Choose one with --name.');
  const { builtIn } = modelFolders(process.env);
  const { manifests } = await knownManifests({ builtIn, models: '', manifests: '' });
  if (command.output === undefined && manifests.some((manifest) => manifest.name === name)) {
    throw usageError(`${name} is the name of a model that is part of muser`, 'Choose another one with --name.');
  }
  return { repository, revision, name };
}
