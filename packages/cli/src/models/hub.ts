import { createHash } from 'node:crypto';
import type http from 'node:http';
import { z } from 'zod';
import { CliError, EXIT, usageError } from '../exit.js';
import { type Manifest, type manifestSchema, parseManifest, pathProblem } from './manifest.js';
import { HttpStatusError, openWeb, urlBelow, type WebSource } from './transfer/source.js';

const MAX_LISTING_BYTES = 8 * 1024 * 1024;
const MAX_PAGES = 20;
/** Files that the hub does not keep in its large-file store have at most 10 MB there; more is refused. */
const MAX_SMALL_FILE_BYTES = 64 * 1024 * 1024;
const TIMEOUT_MS = 120_000;

const revisionSchema = z.object({ sha: z.string().regex(/^[0-9a-f]{40}$/) });
const entrySchema = z.object({
  type: z.string(),
  path: z.string(),
  size: z.number().int().min(0),
  /** Git's name of the content: SHA-1 over "blob SIZE\0" and the bytes. */
  oid: z.string(),
  /** Present for files of the large-file store: their SHA-256. */
  lfs: z.object({ oid: z.string().regex(/^[0-9a-f]{64}$/), size: z.number().int().min(0) }).nullish(),
});
type Entry = z.infer<typeof entrySchema>;

export interface PinOptions {
  repository: string;
  /** A commit, branch or tag. */
  revision: string;
  name: string;
  /** Paths to take, with `*` for anything within a folder; empty takes all. */
  include: readonly string[];
  source: WebSource;
  signal: AbortSignal;
  onFile: (path: string) => void;
}

/**
 * A manifest of a hub's repository at one commit. Large files are taken with the SHA-256 that the hub states; small ones
 * have none there, so they are fetched, checked against git's digest, and hashed.
 */
export async function pin(options: PinOptions): Promise<Manifest> {
  const revision = await resolveRevision(options);
  const wanted = options.include.map(globToPattern);
  const entries = (await listTree(options, revision)).filter(
    ({ type, path }) => type === 'file' && (wanted.length === 0 || wanted.some((pattern) => pattern.test(path))),
  );
  if (entries.length === 0) throw usageError(`no file of ${options.repository} matches`);
  const files: Manifest['files'] = [];
  for (const entry of entries.sort((a, b) => (a.path < b.path ? -1 : 1))) {
    options.onFile(entry.path);
    const problem = pathProblem(entry.path);
    if (problem !== null) throw badAnswer(`a file's path ${problem}`);
    const { lfs } = entry;
    if (lfs) files.push({ path: entry.path, size: lfs.size, sha256: lfs.oid });
    else files.push({ path: entry.path, size: entry.size, sha256: await digestSmallFile(options, revision, entry) });
  }
  const source = { type: 'hub' as const, repository: options.repository, revision };
  // Through the parser, so that a manifest which could not be read later is never made.
  return parseManifest(
    JSON.stringify({ schema: 1, name: options.name, source, files } satisfies z.input<typeof manifestSchema>),
    `of ${options.repository}`,
  );
}

/** Address of a file of a repository, below the hub's own. */
export function resolvePath(repository: string, revision: string): string {
  return `${repository}/resolve/${revision}/`;
}

async function resolveRevision(options: PinOptions): Promise<string> {
  const path = `api/models/${options.repository}/revision/${options.revision}`;
  // A branch may have slashes in its name, which the hub wants encoded as part of one segment.
  const url = urlBelow(options.source.base, `api/models/${options.repository}/revision/`);
  url.pathname += encodeURIComponent(options.revision);
  const { body } = await getJson(options, url, path);
  return parseAnswer(revisionSchema, body).sha;
}

async function listTree(options: PinOptions, revision: string): Promise<Entry[]> {
  const path = `api/models/${options.repository}/tree/${revision}`;
  const entries: Entry[] = [];
  let url: URL | null = urlBelow(options.source.base, path);
  url.search = '?recursive=true';
  for (let page = 0; url !== null; page += 1) {
    if (page === MAX_PAGES) throw badAnswer(`more than ${MAX_PAGES} pages of files`);
    const { body, next } = await getJson(options, url, path);
    entries.push(...parseAnswer(z.array(entrySchema), body));
    url = next === null ? null : new URL(next, url);
    if (url !== null && url.origin !== options.source.base.origin) throw badAnswer('the next page is on another host');
  }
  return entries;
}

async function digestSmallFile(options: PinOptions, revision: string, entry: Entry): Promise<string> {
  if (entry.size > MAX_SMALL_FILE_BYTES) {
    throw badAnswer(`${entry.path} has ${entry.size} bytes and no SHA-256`);
  }
  const url = urlBelow(options.source.base, `${resolvePath(options.repository, revision)}${entry.path}`);
  const bytes = await readAll(await get(options, url, entry.path), entry.size);
  const git = createHash('sha1').update(`blob ${bytes.length}\0`).update(bytes).digest('hex');
  if (bytes.length !== entry.size || git !== entry.oid) {
    throw new CliError(EXIT.failed, 'DIGEST_MISMATCH', `${entry.path} is not what the hub's listing says`);
  }
  return createHash('sha256').update(bytes).digest('hex');
}

async function getJson(options: PinOptions, url: URL, what: string): Promise<{ body: unknown; next: string | null }> {
  const response = await get(options, url, what);
  const text = (await readAll(response, MAX_LISTING_BYTES)).toString('utf8');
  const next = /<([^>]+)>;\s*rel="next"/.exec(String(response.headers.link ?? ''))?.[1] ?? null;
  try {
    return { body: JSON.parse(text) as unknown, next };
  } catch (error) {
    throw badAnswer('it is no JSON', error);
  }
}

async function get(options: PinOptions, url: URL, what: string): Promise<http.IncomingMessage> {
  const signal = AbortSignal.any([options.signal, AbortSignal.timeout(TIMEOUT_MS)]);
  try {
    return await openWeb(options.source, url, {}, signal);
  } catch (error) {
    options.signal.throwIfAborted();
    if (error instanceof CliError) throw error;
    const status = error instanceof HttpStatusError ? error.status : null;
    const message = `${what}: ${error instanceof Error ? error.message : String(error)}`;
    if (status === 404) throw new CliError(EXIT.failed, 'NOT_FOUND', message, { cause: error });
    if (status === 401 || status === 403) {
      const advice = 'Put a token that may read the repository into MUSER_HUB_TOKEN.';
      throw new CliError(EXIT.failed, 'PERMISSION_DENIED', message, { advice, cause: error });
    }
    throw new CliError(EXIT.unreachable, 'PEER_UNREACHABLE', message, { cause: error });
  }
}

async function readAll(response: http.IncomingMessage, limit: number): Promise<Buffer> {
  const parts: Buffer[] = [];
  let length = 0;
  for await (const part of response as AsyncIterable<Buffer>) {
    length += part.length;
    if (length > limit) {
      response.destroy();
      throw badAnswer(`more than ${limit} bytes came`);
    }
    parts.push(part);
  }
  return Buffer.concat(parts);
}

function parseAnswer<T>(schema: z.ZodType<T>, body: unknown): T {
  const parsed = schema.safeParse(body);
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  throw badAnswer(`${issue?.path.join('.') ?? ''}: ${issue?.message ?? ''}`);
}

function badAnswer(reason: string, cause?: unknown): CliError {
  return new CliError(EXIT.failed, 'MESSAGE_INVALID', `the hub's answer cannot be used: ${reason}`, { cause });
}

function globToPattern(glob: string): RegExp {
  const parts = glob.split('*').map((part) => part.replace(/[.+?^${}()|[\]\\]/g, '\\$&'));
  return new RegExp(`^${parts.join('[^/]*')}$`);
}
