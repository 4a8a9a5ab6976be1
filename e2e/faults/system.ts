import { execFile, execFileSync } from 'node:child_process';
import { copyFile, mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import type { NodeStatus } from '@muser/protocol';
import type { ProxiedConnection } from '@muser/testing';
import { Child, childEnvironment, entryOf, type ChildSpec, type Program } from './child.js';
import { findFaketime } from './faketime.js';
import { Link } from './network.js';
import { inCheckout } from '../test/support/checkout.js';
import { ProducerStatus } from './producer-status.js';
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
/** Room for the files of a process; the rest of it can be filled. */
const DISK_MIB = 16;
/** The decoder's: how long a cell with a silent peer takes. */
export const STALL_MS = { llama: 2_500, vllm: 4_000 } as const;
/** Of a decoder. */
const PATIENT = { MUSER_DECODER_STALL_TIMEOUT_MS: '30000' } as const;

export interface NodeView {
  readonly nodeId: string;
  readonly role: string;
  readonly state: string;
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
  readonly #disks: string[] = [];
  /** Of a library that gives a process a clock of its own; null where it is not installed. */
  readonly faketime = findFaketime();
  readonly #status: ProducerStatus;
  #token = '';
  #producerId = '';

  private constructor(
    readonly backend: Backend,
    readonly root: string,
    /** What dials the producer: the decoders and the coordinator. */
    readonly toProducer: Link,
    /** From the decoder to the coordinator. */
    readonly toCoordinator: Link,
    private readonly signal: AbortSignal,
  ) {
    this.#status = new ProducerStatus(join(this.folderOf('coordinator'), 'identity'));
  }

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
    return join(this.folderOf(role), 'log');
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

  /** The producer as the operator sees it, which may be a second old. */
  async producer(): Promise<NodeView> {
    const { nodes } = (await this.operator('GET', '/api/nodes')) as { nodes: NodeView[] };
    const node = nodes.find(({ nodeId }) => nodeId === this.#producerId);
    if (node === undefined) throw new Error('the coordinator does not know the producer');
    return node;
  }

  /** What the producer says of itself now. */
  producerNow(): Promise<NodeStatus> {
    return this.#status.of(this.child('producer').ready.address ?? '', this.#producerId);
  }

  connectionOfDecoder(): ProxiedConnection | null {
    return this.toProducer.connectionOf(this.child('decoder').pid);
  }

  disconnectDecoder(): Promise<void> {
    return this.toProducer.disconnect(this.child('decoder').pid);
  }

  /** Whatever was held goes on, and what is broken ends. */
  calm(): void {
    this.toProducer.calm();
    this.toCoordinator.calm();
  }

  /** Every process has a small disk for its state and its log. */
  get hasSmallDisks(): boolean {
    return this.#disks.length > 0;
  }

  /**
   * Starts a process again with what it had before. It may have another port then, which only the proxies have to know.
   * @param how its clock can be set from now on; or it waits for a producer for as long as a transfer may stand still
   */
  async restart(role: Role, how: 'clock' | 'patient' | null = null): Promise<void> {
    await this.child(role).kill();
    if (how === 'clock') await this.setClock(role, '+0');
    const environments = { clock: this.clockEnvironment(role), patient: PATIENT };
    await this.spawn(role, how === null ? {} : environments[how]);
  }

  /** @param offset from the clock of this machine, as faketime writes it: "+1h" */
  async setClock(role: Role, offset: string): Promise<void> {
    await writeFile(this.clockOf(role), `${offset}\n`);
  }

  async close(): Promise<void> {
    this.#status.close();
    const order: Role[] = ['bystander', 'decoder', 'producer', 'coordinator'];
    for (const role of order) await this.#children.get(role)?.stop();
    // What a disk in memory holds is gone with it.
    if (this.hasSmallDisks) for (const role of ROLES) await this.keepLog(role);
    for (const disk of this.#disks) execFileSync('umount', ['--lazy', disk]);
    await Promise.all([this.toProducer.close(), this.toCoordinator.close()]);
  }

  /** At once, whatever they do. */
  kill(): void {
    for (const child of this.#children.values()) void child.kill();
  }

  private async startAll(): Promise<void> {
    for (const role of ROLES) {
      await mkdir(this.folderOf(role), { mode: 0o700, recursive: true });
      this.mountDisk(this.folderOf(role));
    }
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

  /** Only root can; without it the disk of the machine is used, and nothing fills that. */
  private mountDisk(folder: string): void {
    if (process.getuid?.() !== 0) return;
    try {
      execFileSync('mount', ['-t', 'tmpfs', '-o', `size=${DISK_MIB}m,mode=700`, 'tmpfs', folder], { stdio: 'ignore' });
      this.#disks.push(folder);
    } catch {
      // A container may forbid it even to root.
    }
  }

  private async keepLog(role: Role): Promise<void> {
    // A process that never started has none.
    await copyFile(this.logOf(role), join(this.root, `${role}.log`)).catch(() => undefined);
  }

  private clockOf(role: Role): string {
    return join(this.root, `${role}.clock`);
  }

  private clockEnvironment(role: Role): Record<string, string> {
    return {
      LD_PRELOAD: this.faketime ?? '',
      FAKETIME_TIMESTAMP_FILE: this.clockOf(role),
      FAKETIME_NO_CACHE: '1',
      // Timers are not affected by a clock that somebody sets.
      DONT_FAKE_MONOTONIC: '1',
      FAKETIME_DONT_FAKE_MONOTONIC: '1',
    };
  }

  private async spawn(role: Role, environment: Readonly<Record<string, string>> = {}): Promise<void> {
    const spec: ChildSpec = {
      program: PROGRAMS[role],
      folder: this.folderOf(role),
      logFile: this.logOf(role),
      settings: this.settingsOf(role),
      environment,
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
          flashAttention: false,
          drainMs: DRAIN_MS,
        };
      case 'decoder':
      case 'bystander':
        return {
          model: GGUF,
          threads: THREADS,
          // So that a prompt has the same logits whichever way it is prefilled.
          flashAttention: false,
          drainMs: DRAIN_MS,
          contextTokens: role === 'decoder' ? 8_192 : 16_384,
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
