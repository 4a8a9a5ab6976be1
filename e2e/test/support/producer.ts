import { createInterface } from 'node:readline';
import { callCoordinator, type CoordinatorAccess } from './nodes.js';
import { startMuser } from './muser.js';

interface Ready {
  address: string;
  nodeId: string;
  backend: string;
  pid: number;
}

/** A running `muser producer --json`. */
export class Producer {
  private constructor(
    readonly ready: Ready,
    private readonly messages: readonly string[],
    private readonly child: ReturnType<typeof startMuser>,
  ) {}

  /** @param state a state folder in which a producer is enrolled */
  static async start(state: string, ...flags: string[]): Promise<Producer> {
    const child = startMuser(['producer', '--json', '--state', state, ...flags], { buffer: false });
    const messages: string[] = [];
    createInterface({ input: child.stderr as NodeJS.ReadableStream }).on('line', (line) => messages.push(line));
    const line = await Promise.race([
      new Promise<string>((resolve) =>
        createInterface({ input: child.stdout as NodeJS.ReadableStream }).once('line', resolve),
      ),
      child.then(() => Promise.reject(new Error(`muser producer ended:\n${messages.join('\n')}`))),
    ]);
    return new Producer(JSON.parse(line) as Ready, messages, child);
  }

  /** What it has told people until now. */
  get log(): string {
    return this.messages.join('\n');
  }

  /** Tells the coordinator where it is dialled. */
  async announce(coordinator: CoordinatorAccess): Promise<void> {
    const { nodeId, address } = this.ready;
    await callCoordinator(coordinator, 'PATCH', `/api/nodes/${nodeId}`, { addresses: [address] });
  }

  /** By Ctrl-C. @returns its exit code */
  async stop(): Promise<number | undefined> {
    this.child.kill('SIGINT');
    return (await this.child).exitCode;
  }
}
