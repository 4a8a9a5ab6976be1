import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { execa } from 'execa';
import { inCheckout } from './checkout.js';
import { eventually } from './muser.js';

type Program = 'coordinator' | 'gb10-producer' | 'mac-decoder';

const entryOf = (program: Program): string => inCheckout(`packages/${program}/dist/main.js`);

/** Where and how a process is started, beside its own command line. */
export interface Launch {
  /** A command that starts Node, as `ip netns exec NAME`. It must become Node, so that the process id is Node's. */
  prefix?: readonly string[];
  nodeFlags?: readonly string[];
  env?: Readonly<Record<string, string>>;
}

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
    readonly pid: number,
    private readonly child: { kill: (signal: NodeJS.Signals) => boolean } & PromiseLike<unknown>,
  ) {}

  /** @param folder its state folder, which holds its configuration and log as well */
  static async start<R>(program: Program, folder: string, settings: object, launch: Launch = {}): Promise<Node<R>> {
    const { prefix = [], nodeFlags = [], env = {} } = launch;
    const file = join(folder, 'config.json');
    await writeFile(file, JSON.stringify({ ...settings, stateDir: folder, exitWithParent: true }));
    const command = [...prefix, process.execPath, ...nodeFlags, entryOf(program), 'run', '--config', file];
    const child = execa(command[0] ?? '', command.slice(1), {
      env,
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
    return new Node<R>(ready, child.pid ?? 0, child);
  }

  /** Lets it close as it should. */
  async stop(): Promise<void> {
    this.child.kill('SIGTERM');
    await this.child;
  }

  /** Ends it at once, whatever it does. */
  async kill(): Promise<void> {
    this.child.kill('SIGKILL');
    await this.child;
  }
}

export async function callCoordinator(
  { http, token }: CoordinatorAccess,
  method: 'POST' | 'PATCH' | 'DELETE',
  path: string,
  body?: object,
): Promise<unknown> {
  const response = await fetch(new URL(path, http), {
    method,
    headers: {
      authorization: `Bearer ${token}`,
      ...(body !== undefined && { 'content-type': 'application/json' }),
    },
    ...(body !== undefined && { body: JSON.stringify(body) }),
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
  launch: Launch = {},
): Promise<{ access: CoordinatorAccess; pid: number; stop: () => Promise<void> }> {
  await mkdir(folder, { mode: 0o700 });
  const node = await Node.start<{ http: string; grpc: string }>('coordinator', folder, {}, launch);
  const token = await readFile(join(folder, 'operator.token'), 'utf8');
  return { access: { ...node.ready, token: token.trim() }, pid: node.pid, stop: () => node.stop() };
}

export interface ProducerReady {
  /** "host:port" where it listens. */
  address: string;
  nodeId: string;
}

/** Tells a coordinator where a producer is dialled. */
export async function announce(coordinator: CoordinatorAccess, nodeId: string, addresses: string[]): Promise<void> {
  await callCoordinator(coordinator, 'PATCH', `/api/nodes/${nodeId}`, { addresses });
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
  { settings = {}, launch = {} }: { settings?: object; launch?: Launch } = {},
): Promise<Node<DecoderReady>> {
  await enrollNode('mac-decoder', folder, 'joined', coordinator);
  const all = { model, threads: 1, coordinator: coordinator.grpc, drainMs: 1_000, ...settings };
  const decoder = await Node.start<DecoderReady>('mac-decoder', folder, all, launch);
  await producersReady(decoder.ready.http, 1);
  return decoder;
}

/** Waits until a decoder sees so many producers that work. */
export async function producersReady(decoder: string, count: number): Promise<void> {
  await eventually(`the decoder sees ${count} producers`, async () => {
    const health = (await (await fetch(new URL('/health', decoder))).json()) as { producers: { state: string }[] };
    return health.producers.filter(({ state }) => state === 'healthy' || state === 'ready').length >= count;
  });
}
