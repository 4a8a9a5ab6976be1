import { z } from 'zod';
import { CliError, EXIT, usageError } from '../exit.js';
import { readText } from '../files.js';

const MAX_MANIFEST_BYTES = 4 * 1024 * 1024;
const MAX_FILES = 2_000;
/** One file of weights; the largest shards that hubs accept have 50 GB. */
const MAX_FILE_BYTES = 2 ** 40;
const MAX_PATH_BYTES = 512;
/** Parts, locks and the copy of the manifest lie there, inside the model's folder. */
export const PRIVATE_FOLDER = '.muser';

/** Why a path of a manifest may not be used; null when it may. Paths are relative, with `/`, and stay inside the folder. */
export function pathProblem(path: string): string | null {
  if (path === '') return 'is empty';
  if (Buffer.byteLength(path) > MAX_PATH_BYTES) return `is longer than ${MAX_PATH_BYTES} bytes`;
  // eslint-disable-next-line no-control-regex -- control characters are the subject here
  if (/[\u0000-\u001f\u007f\\:]/.test(path)) return 'has a control character, a backslash or a colon';
  if (path.startsWith('/')) return 'is absolute';
  const segments = path.split('/');
  if (segments.some((segment) => segment === '' || segment === '.' || segment === '..')) {
    return 'has an empty segment, "." or ".."';
  }
  if (segments[0]?.toLowerCase() === PRIVATE_FOLDER) return `is in ${PRIVATE_FOLDER}, which muser keeps for itself`;
  return null;
}

const fileSchema = z.strictObject({
  path: z.string().superRefine((path, context) => {
    const problem = pathProblem(path);
    if (problem !== null) context.addIssue({ code: 'custom', message: `the path ${JSON.stringify(path)} ${problem}` });
  }),
  /** Bytes. */
  size: z.number().int().min(0).max(MAX_FILE_BYTES),
  /** Lower-case hexadecimal. Without it nothing could be verified, so it is never optional. */
  sha256: z.string().regex(/^[0-9a-f]{64}$/, 'must be 64 lower-case hexadecimal digits'),
});

export const modelNameSchema = z
  .string()
  .max(128)
  .regex(/^[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?$/, 'must be lower-case letters, digits, ".", "_" and "-"');

/** `owner/name` of a hub. */
export const repositorySchema = z
  .string()
  .max(200)
  .regex(/^[A-Za-z0-9][A-Za-z0-9._-]*\/[A-Za-z0-9][A-Za-z0-9._-]*$/, 'must be OWNER/NAME');

const sourceSchema = z.discriminatedUnion('type', [
  z.strictObject({
    type: z.literal('hub'),
    repository: repositorySchema,
    /** A commit: a branch or a tag can move. */
    revision: z.string().regex(/^[0-9a-f]{40}$/, 'must be a commit of 40 hexadecimal digits'),
  }),
  /** The files are part of muser's own checkout, in a folder beside the manifest. */
  z.strictObject({ type: z.literal('checkout'), folder: modelNameSchema }),
]);

/** What a model consists of: every file with its size and digest. */
export const manifestSchema = z
  .strictObject({
    schema: z.literal(1),
    name: modelNameSchema,
    source: sourceSchema,
    files: z.array(fileSchema).min(1).max(MAX_FILES),
  })
  .superRefine((manifest, context) => {
    // Compared without case: macOS' file system takes a.bin and A.bin for one file.
    const paths = new Set(manifest.files.map((file) => file.path.toLowerCase()));
    if (paths.size !== manifest.files.length) {
      context.addIssue({ code: 'custom', message: 'two files have the same path (upper and lower case are the same)' });
    }
    for (const path of paths) {
      for (let at = path.indexOf('/'); at >= 0; at = path.indexOf('/', at + 1)) {
        if (paths.has(path.slice(0, at))) {
          context.addIssue({ code: 'custom', message: `${path.slice(0, at)} is a file and a folder` });
        }
      }
    }
  });
export type Manifest = z.infer<typeof manifestSchema>;
export type ManifestFile = Manifest['files'][number];

export function totalBytes(manifest: Manifest): number {
  return manifest.files.reduce((sum, file) => sum + file.size, 0);
}

/** Throws CliError CONFIG_INVALID that names the field. `origin` is where the text came from. */
export function parseManifest(text: string, origin: string): Manifest {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new CliError(EXIT.failed, 'CONFIG_INVALID', `the manifest ${origin} is no JSON`, { cause: error });
  }
  const parsed = manifestSchema.safeParse(value);
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  const where = issue === undefined || issue.path.length === 0 ? '' : ` at ${issue.path.join('.')}`;
  throw new CliError(EXIT.failed, 'CONFIG_INVALID', `the manifest ${origin} is wrong${where}: ${issue?.message ?? ''}`);
}

export async function readManifest(path: string): Promise<Manifest> {
  const text = await readText(path, MAX_MANIFEST_BYTES);
  if (text === null) throw usageError(`there is no manifest ${path}`);
  return parseManifest(text, path);
}
