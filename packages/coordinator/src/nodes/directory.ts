import type { Clock } from '@muser/service-kit';

import type {
  CertificateRenewal,
  Enrollment,
  NodeChange,
  NodeOrder,
  NodeRecord,
  RegistryStore,
} from '../registry/store.js';
import type { NodeEntry, Observation } from './node-state.js';

/**
 * Every node with its present state, in memory: the registry's content, which only this class changes, joined with what
 * is observed. Whoever acts on it subscribes.
 */
export class NodeDirectory {
  readonly #store: RegistryStore;
  readonly #clock: Clock;
  readonly #entries = new Map<string, NodeEntry>();
  readonly #listeners = new Set<(entry: NodeEntry) => void>();

  private constructor(store: RegistryStore, clock: Clock) {
    this.#store = store;
    this.#clock = clock;
  }

  static async load(store: RegistryStore, clock: Clock): Promise<NodeDirectory> {
    const directory = new NodeDirectory(store, clock);
    for (const record of await store.list()) directory.#putRecord(record);
    return directory;
  }

  get(nodeId: string): NodeEntry | undefined {
    return this.#entries.get(nodeId);
  }

  /** In the order of enrollment. */
  list(): NodeEntry[] {
    return [...this.#entries.values()];
  }

  async enroll(enrollment: Enrollment): Promise<NodeEntry> {
    return this.#putRecord(await this.#store.enroll(enrollment, this.#clock.now()));
  }

  async change(nodeId: string, change: NodeChange): Promise<NodeEntry> {
    return this.#putRecord(await this.#store.change(nodeId, change, this.#clock.now()));
  }

  async renewCertificate(nodeId: string, renewal: CertificateRenewal): Promise<NodeEntry> {
    return this.#putRecord(await this.#store.renewCertificate(nodeId, renewal, this.#clock.now()));
  }

  async revoke(nodeId: string): Promise<NodeEntry> {
    return this.#putRecord(await this.#store.revoke(nodeId, this.#clock.now()));
  }

  /** Puts an order that the node itself keeps into the audit log. @throws MuserError as RegistryStore.note */
  async note(nodeId: string, order: NodeOrder): Promise<void> {
    await this.#store.note(nodeId, order, this.#clock.now());
  }

  /** Notes what was seen of a node; of no effect for one that is unknown or revoked. */
  observe(nodeId: string, { state, reason, status, heard }: Observation): void {
    const entry = this.#entries.get(nodeId);
    if (entry === undefined || entry.state === 'revoked') return;
    const nowMs = this.#clock.now();
    this.#put({
      ...entry,
      state,
      reason,
      status: status ?? entry.status,
      sinceMs: state === entry.state ? entry.sinceMs : nowMs,
      lastSeenMs: heard ? nowMs : entry.lastSeenMs,
    });
  }

  /** Calls back after every change with the node it concerns. @returns what ends that */
  subscribe(listener: (entry: NodeEntry) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  #putRecord(record: NodeRecord): NodeEntry {
    const known = this.#entries.get(record.nodeId);
    if (record.revokedAtMs !== null) {
      return this.#put({
        record,
        state: 'revoked',
        reason: null,
        sinceMs: record.revokedAtMs,
        lastSeenMs: known?.lastSeenMs ?? null,
        status: known?.status ?? null,
      });
    }
    const fresh = {
      state: 'enrolled',
      reason: null,
      sinceMs: this.#clock.now(),
      lastSeenMs: null,
      status: null,
    } as const;
    return this.#put({ ...(known ?? fresh), record });
  }

  #put(entry: NodeEntry): NodeEntry {
    this.#entries.set(entry.record.nodeId, entry);
    for (const listener of this.#listeners) listener(entry);
    return entry;
  }
}
