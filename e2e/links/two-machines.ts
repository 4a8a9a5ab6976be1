import { isAlive } from '../test/support/muser.js';
import { iproute } from './ip.js';

const PREFIX = 'muser-links-';
const DEVICE = 'cable';
const MTU = 1_500;
/** Longest wait of a packet for its turn, after which it is dropped; a switch's buffer. */
const QUEUE_MS = 50;
/** Bytes that may pass at once: what passes in so much time, and one packet of the largest kind. */
const BURST_SECONDS = 0.002;
const LEAST_BURST_BYTES = 128 * 1024;

/**
 * Two machines for which the kernel has two network namespaces, with one cable between them (a veth pair). Names carry
 * this process's id. The addresses are of 198.18.0.0/15, which is for tests of networks, and exist in these namespaces only.
 */
export class TwoMachines {
  readonly macAddress = '198.18.0.1';
  readonly gb10Address = '198.18.0.2';
  readonly mac: string;
  readonly gb10: string;

  /** @param owner id of the process that made them */
  constructor(owner: number) {
    this.mac = `${PREFIX}${owner}-mac`;
    this.gb10 = `${PREFIX}${owner}-gb10`;
  }

  /** @throws Error when the kernel or the rights do not allow it; nothing is left then */
  static async create(): Promise<TwoMachines> {
    const machines = new TwoMachines(process.pid);
    try {
      await machines.#lay();
      return machines;
    } catch (error) {
      await machines.remove();
      throw error;
    }
  }

  /** The command that starts another one on one of them. */
  on(machine: 'mac' | 'gb10'): string[] {
    return ['ip', 'netns', 'exec', this[machine]];
  }

  /** What leaves either end passes at this rate from now on. */
  async setRate(bitsPerSecond: number): Promise<void> {
    const burst = Math.max(LEAST_BURST_BYTES, Math.round((bitsPerSecond / 8) * BURST_SECONDS));
    for (const machine of [this.mac, this.gb10]) {
      const shape = ['rate', `${bitsPerSecond}bit`, 'burst', String(burst), 'latency', `${QUEUE_MS}ms`];
      await iproute('tc', '-n', machine, 'qdisc', 'replace', 'dev', DEVICE, 'root', 'tbf', ...shape);
    }
  }

  async unplug(): Promise<void> {
    await iproute('ip', '-n', this.gb10, 'link', 'set', DEVICE, 'down');
  }

  /** @throws Error when the address or the route did not come back */
  async plugIn(): Promise<void> {
    await iproute('ip', '-n', this.gb10, 'link', 'set', DEVICE, 'up');
    const addresses = await iproute('ip', '-n', this.gb10, 'address', 'show', 'dev', DEVICE);
    const route = await iproute('ip', '-n', this.gb10, 'route', 'get', this.macAddress);
    if (!addresses.includes(this.gb10Address) || !route.includes(DEVICE)) {
      throw new Error(`after the cable was plugged in again: ${addresses}\n${route}`);
    }
  }

  /** Processes that still run in them keep what they need until they end. */
  async remove(): Promise<void> {
    for (const name of [this.mac, this.gb10]) {
      if ((await namespaces()).includes(name)) await iproute('ip', 'netns', 'delete', name);
    }
  }

  async #lay(): Promise<void> {
    for (const name of [this.mac, this.gb10]) {
      await iproute('ip', 'netns', 'add', name);
      await iproute('ip', '-n', name, 'link', 'set', 'lo', 'up');
    }
    // Made where it belongs, so that it is never seen among the machine's own.
    const end = ['name', DEVICE, 'mtu', String(MTU), 'netns'];
    await iproute('ip', 'link', 'add', ...end, this.mac, 'type', 'veth', 'peer', ...end, this.gb10);
    for (const [name, address] of [
      [this.mac, this.macAddress],
      [this.gb10, this.gb10Address],
    ] as const) {
      await iproute('ip', '-n', name, 'address', 'add', `${address}/30`, 'dev', DEVICE);
      await iproute('ip', '-n', name, 'link', 'set', DEVICE, 'up');
    }
    await this.setRate(1e9);
  }
}

/** Removes what runs left that were killed. @returns the names */
export async function removeLeftovers(): Promise<string[]> {
  const left = (await namespaces()).filter((name) => {
    const [, owner] = new RegExp(`^${PREFIX}(\\d+)-(mac|gb10)$`).exec(name) ?? [];
    return owner !== undefined && !isAlive(Number(owner));
  });
  for (const name of left) await iproute('ip', 'netns', 'delete', name);
  return left;
}

async function namespaces(): Promise<string[]> {
  const list = await iproute('ip', 'netns', 'list');
  return list.split('\n').flatMap((line) => /^\S+/.exec(line)?.[0] ?? []);
}
