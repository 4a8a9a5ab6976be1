import { execFile } from 'node:child_process';
import { mkdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { Child, childEnvironment, entryOf, type ChildSpec, type Program } from './child.js';
import { Link } from './network.js';
import { inCheckout } from '../test/support/checkout.js';
import { until } from './until.js';

export type Backend = 'llama' | 'vllm';
/** `bystander`: a second decoder, which answers locally what the first is asked, and takes the producer's turn. */
export type Role = 'coordinator' | 'producer' | 'decoder' | 'bystander';

const PROGRAMS: Readonly<Record<Role, Program>> = {
  coordinator: 'coordinator',
  producer: 'gb10-producer',
  decoder: 'mac-decoder',
  bystander: 'mac-decoder',
};
const ROLES = Object.keys(PROGRAMS) as Role[];
const GGUF = inCheckout('models/muse-nano/muse-nano-q8_0.gguf');
const CHECKPOINT = inCheckout('models/muse-nano/hf');
/** Two engines at once on two cores. */
const THREADS = 1;
const DRAIN_MS = 500;
/** The decoder's: how long a cell with a silent peer takes. */
export const STALL_MS = { llama: 1_500, vllm: 4_000 } as const;

export interface NodeView {
  readonly nodeId: string;
  readonly role: string;
  readonly state: string;
  readonly lastSeen: string | null;
  readonly load: { readonly queueLength: number; readonly activeTransfers: number } | null;
}

export interface Health {
  readonly sequences: { readonly active: number };
  readonly coordinator: string;
  readonly producers: readonly { readonly state: string }[];
}

/** Coordinator, producer and two decoders as processes, with proxies between them. */
export class System {
  readonly #children = new Map<Role, Child>();
  #token = '';
  #producerId = '';

  private constructor(
    readonly backend: Backend,
    private readonly root: string,
    /** What dials the producer: the decoders and the coordinator. */
    readonly toProducer: Link,
    /** From the decoder to the coordinator. */
    readonly toCoordinator: Link,
    private readonly signal: AbortSignal,
  ) {}

  /** @param root an empty folder */
  static async start(backend: Backend, root: string, signal: AbortSignal): Promise<System> {
    let system: System | null = null;
    const pids = (): number[] => system?.pids ?? [];
    const [toProducer, toCoordinator] = await Promise.all([Link.listen(pids), Link.listen(pids)]);
    system = new System(backend, root, toProducer, toCoordinator, signal);
    try {
      await system.startAll();
      return system;
    } catch (error) {
      await system.close();
      throw error;
    }
  }

  get pids(): number[] {
    return [...this.#children.values()].map(({ pid }) => pid);
  }

  get logs(): string[] {
    return ROLES.map((role) => this.logOf(role));
  }

  logOf(role: Role): string {
    return join(this.root, `${role}.log`);
  }

  folderOf(role: Role): string {
    return join(this.root, role);
  }

  child(role: Role): Child {
    const child = this.#children.get(role);
    if (child === undefined) throw new Error(`the ${role} has not been started`);
    return child;
  }

  url(role: 'decoder' | 'bystander'): string {
    return this.child(role).ready.http ?? '';
  }

  async health(role: 'decoder' | 'bystander'): Promise<Health> {
    return (await (await fetch(new URL('/health', this.url(role)))).json()) as Health;
  }

  /** The producer as the operator sees it. */
  async producer(): Promise<NodeView> {
    const { nodes } = (await this.operator('GET', '/api/nodes')) as { nodes: NodeView[] };
    const node = nodes.find(({ nodeId }) => nodeId === this.#producerId);
    if (node === undefined) throw new Error('the coordinator does not know the producer');
    return node;
  }

  /** Starts a process that has ended again, with what it had before. */
  async restart(role: Role): Promise<void> {
    await this.child(role).kill();
    await this.spawn(role);
    if (role !== 'coordinator') return;
    // It is reached at another port now, which only the proxy has to know; the bystander dials the proxy, too.
    await until('the coordinator hears the producer again', async () => (await this.producer()).load !== null);
  }

  async close(): Promise<void> {
    const order: Role[] = ['bystander', 'decoder', 'producer', 'coordinator'];
    for (const role of order) await this.#children.get(role)?.stop();
    await Promise.all([this.toProducer.close(), this.toCoordinator.close()]);
  }

  private async startAll(): Promise<void> {
    for (const role of ROLES) await mkdir(this.folderOf(role), { mode: 0o700, recursive: true });
    await this.spawn('coordinator');
    this.#token = (await readFile(join(this.folderOf('coordinator'), 'operator.token'), 'utf8')).trim();
    const roles = ['producer', 'decoder', 'bystander'] as const;
    const [producerId] = await Promise.all(roles.map((role) => this.enroll(role)));
    this.#producerId = producerId ?? '';
    await this.spawn('producer');
    const addresses = [this.toProducer.proxy.target];
    await this.operator('PATCH', `/api/nodes/${this.#producerId}`, { addresses });
    await Promise.all([this.spawn('decoder'), this.spawn('bystander')]);
    for (const role of ['decoder', 'bystander'] as const) {
      await until(`the ${role} sees the producer`, async () =>
        (await this.health(role)).producers.some(({ state }) => state === 'ready'),
      );
    }
  }

  private async spawn(role: Role): Promise<void> {
    const spec: ChildSpec = {
      program: PROGRAMS[role],
      folder: this.folderOf(role),
      logFile: this.logOf(role),
      settings: this.settingsOf(role),
    };
    const child = await Child.start(spec, this.signal);
    this.#children.set(role, child);
    const { address, grpc } = child.ready;
    if (address !== undefined) this.toProducer.proxy.retarget(hostPort(address));
    if (grpc !== undefined) this.toCoordinator.proxy.retarget(hostPort(grpc));
  }

  private settingsOf(role: Role): Record<string, unknown> {
    switch (role) {
      case 'coordinator':
        return {};
      case 'producer':
        return {
          backend: this.backend,
          model: this.backend === 'llama' ? GGUF : CHECKPOINT,
          threads: THREADS,
          drainMs: DRAIN_MS,
        };
      case 'decoder':
      case 'bystander':
        return {
          model: GGUF,
          threads: THREADS,
          drainMs: DRAIN_MS,
          contextTokens: 16_384,
          stallTimeoutMs: role === 'decoder' ? STALL_MS[this.backend] : 30_000,
          coordinator: this.toCoordinator.proxy.target,
        };
    }
  }

  /** @returns its id */
  private async enroll(role: 'producer' | 'decoder' | 'bystander'): Promise<string> {
    const dir = join(this.folderOf(role), 'identity');
    const request = JSON.parse(await identityCommand(PROGRAMS[role], ['create', '--dir', dir])) as unknown;
    const body = { name: role, role: role === 'producer' ? 'producer' : 'decoder', addresses: [], request };
    const { node, bundle } = (await this.operator('POST', '/api/nodes', body)) as {
      node: { nodeId: string };
      bundle: unknown;
    };
    await identityCommand(PROGRAMS[role], ['install', '--dir', dir], JSON.stringify(bundle));
    return node.nodeId;
  }

  private async operator(method: string, path: string, body?: object): Promise<unknown> {
    const response = await fetch(new URL(path, this.child('coordinator').ready.http), {
      method,
      headers: { authorization: `Bearer ${this.#token}`, ...(body && { 'content-type': 'application/json' }) },
      ...(body && { body: JSON.stringify(body) }),
    });
    if (!response.ok) throw new Error(`${method} ${path}: ${await response.text()}`);
    return response.json();
  }
}

function hostPort(target: string): { host: string; port: number } {
  const at = target.lastIndexOf(':');
  return { host: target.slice(0, at), port: Number(target.slice(at + 1)) };
}

async function identityCommand(program: Program, args: readonly string[], input = ''): Promise<string> {
  const running = promisify(execFile)(process.execPath, [entryOf(program), 'identity', ...args], {
    env: childEnvironment(),
  });
  running.child.stdin?.end(input);
  return (await running).stdout;
}
