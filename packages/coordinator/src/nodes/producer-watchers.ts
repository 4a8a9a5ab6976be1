import type { Clock, Logger } from '@muser/service-kit';
import type { LiveIdentity } from '@muser/transport';

import type { NodeDirectory } from './directory.js';
import type { NodeEntry, Observation } from './node-state.js';
import { ProducerWatcher } from './producer-watcher.js';

export interface ProducerWatchersOptions {
  directory: NodeDirectory;
  identity: LiveIdentity;
  clock: Clock;
  logger: Logger;
}

/** One watcher for every producer that may take part, in step with the directory. */
export class ProducerWatchers {
  readonly #options: ProducerWatchersOptions;
  readonly #watchers = new Map<string, ProducerWatcher>();
  readonly #unsubscribe: () => void;
  readonly #stopping = new Set<Promise<void>>();

  constructor(options: ProducerWatchersOptions) {
    this.#options = options;
    for (const entry of options.directory.list()) this.#follow(entry);
    this.#unsubscribe = options.directory.subscribe((entry) => this.#follow(entry));
  }

  async close(): Promise<void> {
    this.#unsubscribe();
    for (const nodeId of [...this.#watchers.keys()]) this.#stop(nodeId);
    await Promise.all(this.#stopping);
  }

  #follow({ record: { nodeId, role, addresses }, state }: NodeEntry): void {
    if (role !== 'producer') return;
    if (state === 'revoked') {
      this.#stop(nodeId);
      return;
    }
    const watcher = this.#watchers.get(nodeId);
    if (watcher !== undefined) {
      watcher.setAddresses(addresses);
      return;
    }
    const { directory, identity, clock, logger } = this.#options;
    const observe = (observation: Observation): void => directory.observe(nodeId, observation);
    this.#watchers.set(nodeId, new ProducerWatcher({ nodeId, addresses, directory, identity, clock, logger, observe }));
  }

  #stop(nodeId: string): void {
    const watcher = this.#watchers.get(nodeId);
    if (watcher === undefined) return;
    this.#watchers.delete(nodeId);
    const stopped = watcher.stop().finally(() => this.#stopping.delete(stopped));
    this.#stopping.add(stopped);
  }
}
