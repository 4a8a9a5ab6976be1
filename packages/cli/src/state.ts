import { readdir, stat } from 'node:fs/promises';
import { homedir } from 'node:os';
import { basename, join, resolve } from 'node:path';
import { describeError, ensurePrivateFolder, ServiceError } from '@muser/service-kit';
import { z } from 'zod';
import { CliError, EXIT, usageError } from './exit.js';
import { readText } from './files.js';

/** Where `muser dev` listens unless told otherwise, and where `muser ask` looks when no state folder says more. */
export const DEFAULT_DECODER_PORT = 11711;

const MAX_ENDPOINTS_BYTES = 64 * 1024;

/** One folder holds everything of one system: keys, registry, configuration, logs. */
export interface StateLayout {
  root: string;
  coordinator: string;
  producer: string;
  decoder: string;
  logs: string;
  endpointsFile: string;
  operatorTokenFile: string;
}

export function stateLayout(root: string): StateLayout {
  return {
    root,
    coordinator: join(root, 'coordinator'),
    producer: join(root, 'producer'),
    decoder: join(root, 'decoder'),
    logs: join(root, 'logs'),
    endpointsFile: join(root, 'endpoints.json'),
    operatorTokenFile: join(root, 'coordinator', 'operator.token'),
  };
}

/** --state, else MUSER_STATE, else ~/.muser; always absolute. */
export function stateRoot(option: string | undefined, env: NodeJS.ProcessEnv): string {
  const fromEnv = env['MUSER_STATE'];
  if (option !== undefined) return resolve(option);
  if (fromEnv !== undefined && fromEnv !== '') return resolve(fromEnv);
  return join(homedir(), '.muser');
}

/** Makes the folders, readable by their owner only. A folder that was there with wider rights is narrowed. */
export async function createStateFolders(layout: StateLayout): Promise<void> {
  try {
    await refuseForeignFolder(layout);
    for (const folder of [layout.root, layout.coordinator, layout.producer, layout.decoder, layout.logs]) {
      await ensurePrivateFolder(folder);
    }
  } catch (error) {
    const { message } = describeError(error);
    throw new CliError(EXIT.failed, 'CONFIG_INVALID', message, {
      advice: 'Choose another state folder with --state.',
      cause: error,
    });
  }
}

/** Closing a folder such as /tmp or a home folder to others would break what else lives in it. */
async function refuseForeignFolder(layout: StateLayout): Promise<void> {
  const entries = await readdir(layout.root).catch((): string[] => []);
  if (entries.length === 0 || entries.includes(basename(layout.coordinator))) return;
  if (((await stat(layout.root)).mode & 0o077) === 0) return;
  throw new ServiceError('CONFIG_INVALID', `the folder ${layout.root} is open to other users and holds other files`);
}

const endpointsSchema = z.object({
  decoder: z.url(),
  coordinator: z.url(),
  pids: z.object({ coordinator: z.number(), producer: z.number(), decoder: z.number() }),
});
/** Where the processes of a running `muser dev` are. */
export type Endpoints = z.infer<typeof endpointsSchema>;

/** null when there is no such file; an error when it is there and broken. */
export async function readEndpoints(layout: StateLayout): Promise<Endpoints | null> {
  const text = await readText(layout.endpointsFile, MAX_ENDPOINTS_BYTES);
  if (text === null) return null;
  try {
    return endpointsSchema.parse(JSON.parse(text));
  } catch (error) {
    throw new CliError(EXIT.failed, 'CONFIG_INVALID', `${layout.endpointsFile} is damaged`, {
      advice: 'Delete it; the next `muser dev` writes a new one.',
      cause: error,
    });
  }
}

/**
 * --url, else MUSER_URL, else what a `muser dev` with this state folder wrote, else the default port on this machine.
 * @throws CliError when --state names a folder with which nothing runs
 */
export async function decoderUrl(
  options: { url?: string | undefined; state?: string | undefined },
  env: NodeJS.ProcessEnv,
): Promise<URL> {
  const given = options.url ?? (options.state === undefined ? env['MUSER_URL'] : undefined);
  if (given !== undefined && given !== '') return parseUrl(given);
  const root = stateRoot(options.state, env);
  const endpoints = await readEndpoints(stateLayout(root));
  if (endpoints === null && options.state !== undefined) throw notRunning(root);
  return new URL(endpoints?.decoder ?? `http://127.0.0.1:${DEFAULT_DECODER_PORT}`);
}

/** Whoever names a folder means that system, not whatever else listens on the usual port. */
function notRunning(root: string): CliError {
  return new CliError(EXIT.unreachable, 'PEER_UNREACHABLE', `nothing runs with the state folder ${root}`, {
    advice: 'Start it with `muser dev --state …`, or name the decoder with --url.',
  });
}

function parseUrl(text: string): URL {
  const url = URL.canParse(text) ? new URL(text) : null;
  if (url === null || !['http:', 'https:'].includes(url.protocol)) {
    throw usageError(`"${text}" is no http:// or https:// address`);
  }
  // Clients of OpenAI-compatible servers are configured with a base that ends in /v1; ours adds it itself.
  url.pathname = url.pathname.replace(/\/v1\/?$/, '/');
  return url;
}
