import { ByteBudget } from './budget.js';

/** One budget for the process, and under it one for each peer that has been seen (as many as are enrolled). */
export class PeerBudgets {
  readonly #peerBytes: number;
  readonly #process: ByteBudget;
  readonly #peers = new Map<string, ByteBudget>();

  constructor(limits: { processBytes: number; peerBytes: number }) {
    this.#peerBytes = limits.peerBytes;
    this.#process = new ByteBudget(limits.processBytes);
  }

  /** Of all peers together. */
  get usedBytes(): number {
    return this.#process.usedBytes;
  }

  /** What all transfers of this peer share; each has a budget of its own under it. */
  of(nodeId: string): ByteBudget {
    let budget = this.#peers.get(nodeId);
    if (budget === undefined) {
      budget = new ByteBudget(this.#peerBytes, this.#process);
      this.#peers.set(nodeId, budget);
    }
    return budget;
  }
}
