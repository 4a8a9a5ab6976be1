import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { execa } from 'execa';
import { eventually } from './muser.js';

type Program = 'coordinator' | 'gb10-producer' | 'mac-decoder';

const entryOf = (program: Program): string =>
  fileURLToPath(new URL(`../../../packages/${program}/dist/main.js`, import.meta.url));

/** Where a coordinator is reached, and the token of its operator. */
export interface CoordinatorAccess {
  http: string;
  grpc: string;
  token: string;
}

/** A process of ours that is started by its configuration file, without the CLI. */
export class Node<R> {
  private constructor(
    readonly ready: R,
    private readonly child: { kill: (signal: NodeJS.Signals) => boolean } & PromiseLike<unknown>,
  ) {}

  /** @param folder its state folder, which holds its configuration and log as well */
  static async start<R>(program: Program, folder: string, settings: object): Promise<Node<R>> {
    const file = join(folder, 'config.json');
    await writeFile(file, JSON.stringify({ ...settings, stateDir: folder, exitWithParent: true }));
    const child = execa(process.execPath, [entryOf(program), 'run', '--config', file], {
      stdin: 'pipe',
      stderr: { file: join(folder, 'log') },
      buffer: false,
      reject: false,
    });
    const line = await Promise.race([
      new Promise<string>((resolve) => {
        // A producer on vLLM first tells how far its start is.
        const isReadyLine = (line: string): boolean => !line.startsWith('{"milestone"');
        createInterface({ input: child.stdout }).on('line', (line) => isReadyLine(line) && resolve(line));
      }),
      child.then(() => Promise.reject(new Error(`the ${program} ended; see ${folder}/log`))),
    ]);
    const ready = JSON.parse(line) as R & { ready: boolean };
    if (!ready.ready) throw new Error(line);
    return new Node<R>(ready, child);
  }

  async stop(): Promise<void> {
    this.child.kill('SIGTERM');
    await this.child;
  }
}

export async function callCoordinator(
  { http, token }: CoordinatorAccess,
  method: 'POST' | 'PATCH',
  path: string,
  body: object,
): Promise<unknown> {
  const response = await fetch(new URL(path, http), {
    method,
    headers: { 'content-type': 'application/json', authorization: `Bearer ${token}` },
    body: JSON.stringify(body),
  });
  if (!response.ok) throw new Error(await response.text());
  return response.json();
}

/** Gives a node its certificate by the three steps of docs/OPERATIONS.md. @returns its id */
export async function enrollNode(
  program: 'gb10-producer' | 'mac-decoder',
  stateDir: string,
  name: string,
  coordinator: CoordinatorAccess,
): Promise<string> {
  const folder = join(stateDir, 'identity');
  const { stdout } = await execa(process.execPath, [entryOf(program), 'identity', 'create', '--dir', folder]);
  const role = program === 'mac-decoder' ? 'decoder' : 'producer';
  const registration = { name, role, addresses: [], request: JSON.parse(stdout) as unknown };
  const answer = await callCoordinator(coordinator, 'POST', '/api/nodes', registration);
  const { node, bundle } = answer as { node: { nodeId: string }; bundle: unknown };
  await execa(process.execPath, [entryOf(program), 'identity', 'install', '--dir', folder], {
    input: JSON.stringify(bundle),
  });
  return node.nodeId;
}

/** A coordinator of its own. */
export async function startCoordinator(
  folder: string,
): Promise<{ access: CoordinatorAccess; stop: () => Promise<void> }> {
  await mkdir(folder, { mode: 0o700 });
  const node = await Node.start<{ http: string; grpc: string }>('coordinator', folder, {});
  const token = await readFile(join(folder, 'operator.token'), 'utf8');
  return { access: { ...node.ready, token: token.trim() }, stop: () => node.stop() };
}

export interface DecoderReady {
  http: string;
  nodeId: string;
}

/** Enrolls a decoder, starts it with one thread, and waits until it sees a producer that works. */
export async function joinDecoder(
  coordinator: CoordinatorAccess,
  folder: string,
  model: string,
): Promise<Node<DecoderReady>> {
  await enrollNode('mac-decoder', folder, 'joined', coordinator);
  const settings = { model, threads: 1, coordinator: coordinator.grpc, drainMs: 1_000 };
  const decoder = await Node.start<DecoderReady>('mac-decoder', folder, settings);
  await eventually('the decoder sees a producer', async () => {
    const health = (await (await fetch(new URL('/health', decoder.ready.http))).json()) as {
      producers: { state: string }[];
    };
    return health.producers.some(({ state }) => state === 'healthy' || state === 'ready');
  });
  return decoder;
}
