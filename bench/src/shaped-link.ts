import { execFile } from 'node:child_process';
import { promisify } from 'node:util';

const LIMIT_MS = 10_000;
const MTU = 9_000;
/** Bytes that may pass at once: what passes in so much time, and one packet of the largest kind. */
const BURST_SECONDS = 0.002;
const LEAST_BURST_BYTES = 128 * 1024;
const QUEUE_MS = 50;
const PROBE_BITS_PER_SECOND = 1e9;

const run = promisify(execFile);
async function tool(name: 'ip' | 'tc', ...args: string[]): Promise<void> {
  try {
    await run(name, args, { timeout: LIMIT_MS });
  } catch (error) {
    const { code, stderr } = error as { code?: unknown; stderr?: string };
    const reason = code === 'ENOENT' ? `${name} is not installed (iproute2)` : (stderr || String(error)).trim();
    throw new Error(`${name} ${args.join(' ')}: ${reason}`, { cause: error });
  }
}

/**
 * A cable between this machine and a network namespace of it (a veth pair), shaped by tbf at both ends. The addresses are of
 * 198.18.0.0/15, which is for tests of networks. Needs root and iproute2.
 */
export class ShapedLink {
  readonly farAddress = '198.18.4.2';
  readonly #namespace = `muser-bench-${process.pid}`;
  readonly #device = `mb${process.pid}`;

  /** @throws Error when the kernel or the rights do not allow it; nothing is left then */
  static async create(): Promise<ShapedLink> {
    const link = new ShapedLink();
    try {
      await link.#lay();
      await link.setRate(PROBE_BITS_PER_SECOND);
      return link;
    } catch (error) {
      await link.remove();
      throw error;
    }
  }

  /** The command that starts another one at the far end. */
  get farCommand(): string[] {
    return ['ip', 'netns', 'exec', this.#namespace];
  }

  async setRate(bitsPerSecond: number): Promise<void> {
    const burst = Math.max(LEAST_BURST_BYTES, Math.round((bitsPerSecond / 8) * BURST_SECONDS));
    const shape = ['rate', `${bitsPerSecond}bit`, 'burst', String(burst), 'latency', `${QUEUE_MS}ms`];
    await tool('tc', 'qdisc', 'replace', 'dev', this.#device, 'root', 'tbf', ...shape);
    await tool('tc', '-n', this.#namespace, 'qdisc', 'replace', 'dev', 'cable', 'root', 'tbf', ...shape);
  }

  /** The device goes with the namespace that its other end is in. */
  async remove(): Promise<void> {
    await tool('ip', 'netns', 'delete', this.#namespace).catch(() => undefined);
  }

  async #lay(): Promise<void> {
    const name = this.#namespace;
    await tool('ip', 'netns', 'add', name);
    const end = (device: string): string[] => ['name', device, 'mtu', String(MTU)];
    await tool('ip', 'link', 'add', ...end(this.#device), 'type', 'veth', 'peer', ...end('cable'), 'netns', name);
    await tool('ip', 'address', 'add', '198.18.4.1/30', 'dev', this.#device);
    await tool('ip', 'link', 'set', this.#device, 'up');
    await tool('ip', '-n', name, 'address', 'add', `${this.farAddress}/30`, 'dev', 'cable');
    await tool('ip', '-n', name, 'link', 'set', 'cable', 'up');
  }
}
