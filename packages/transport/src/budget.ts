import { MuserError } from '@muser/protocol';

interface Waiter {
  leaf: ByteBudget;
  bytes: number;
  grant: () => void;
}

/**
 * Bounds the bytes that are on their way. Budgets form a tree (process > peer > transfer): bytes acquired from a leaf count
 * in each of its ancestors too.
 *
 * A leaf that has nothing in flight never waits for its ancestors. That is what keeps a few slow readers, which hold the
 * whole process budget, from stopping every other transfer; the bound is limitBytes plus one message per running transfer.
 */
export class ByteBudget {
  readonly limitBytes: number;
  readonly #parent: ByteBudget | null;
  /** In the order of their calls; the root's list is used for the whole tree. */
  readonly #waiters: Waiter[] = [];
  #usedBytes = 0;

  constructor(limitBytes: number, parent: ByteBudget | null = null) {
    this.limitBytes = limitBytes;
    this.#parent = parent;
  }

  get usedBytes(): number {
    return this.#usedBytes;
  }

  /**
   * Waits until `bytes` fit. Calls on the same leaf are served in their order.
   *
   * @throws MuserError RESOURCE_EXHAUSTED when `bytes` exceed the whole budget, or the signal's reason
   */
  async acquire(bytes: number, signal?: AbortSignal): Promise<void> {
    if (bytes > this.limitBytes) {
      throw new MuserError('RESOURCE_EXHAUSTED', `${bytes} bytes exceed the whole budget of ${this.limitBytes} bytes`);
    }
    signal?.throwIfAborted();
    if (!this.tryAcquire(bytes)) await this.#wait(bytes, signal);
  }

  /** Like acquire, but never waits. @returns false when it would have to */
  tryAcquire(bytes: number): boolean {
    const mustQueue = this.#root().#waiters.some((waiter) => waiter.leaf === this);
    if (mustQueue || !this.#fits(bytes)) return false;
    this.#charge(bytes);
    return true;
  }

  release(bytes: number): void {
    this.#charge(-bytes);
    this.#root().#grantWaiters();
  }

  #wait(bytes: number, signal: AbortSignal | undefined): Promise<void> {
    const root = this.#root();
    return new Promise((resolve, reject) => {
      const onAbort = () => {
        root.#waiters.splice(root.#waiters.indexOf(waiter), 1);
        // Those behind it on the same leaf may fit although it did not.
        root.#grantWaiters();
        // eslint-disable-next-line @typescript-eslint/prefer-promise-reject-errors -- the reason is the caller's own
        reject(signal?.reason);
      };
      const grant = () => {
        signal?.removeEventListener('abort', onAbort);
        resolve();
      };
      const waiter: Waiter = { leaf: this, bytes, grant };
      root.#waiters.push(waiter);
      signal?.addEventListener('abort', onAbort, { once: true });
    });
  }

  #root(): ByteBudget {
    return this.#parent === null ? this : this.#parent.#root();
  }

  #grantWaiters(): void {
    const blocked = new Set<ByteBudget>();
    for (const waiter of [...this.#waiters]) {
      if (blocked.has(waiter.leaf) || !waiter.leaf.#fits(waiter.bytes)) {
        blocked.add(waiter.leaf);
        continue;
      }
      this.#waiters.splice(this.#waiters.indexOf(waiter), 1);
      waiter.leaf.#charge(waiter.bytes);
      waiter.grant();
    }
  }

  #fits(bytes: number): boolean {
    if (this.#usedBytes + bytes > this.limitBytes) return false;
    if (this.#usedBytes === 0) return true;
    for (let budget = this.#parent; budget !== null; budget = budget.#parent) {
      if (budget.#usedBytes + bytes > budget.limitBytes) return false;
    }
    return true;
  }

  #charge(bytes: number): void {
    this.#usedBytes += bytes;
    if (this.#parent !== null) this.#parent.#charge(bytes);
  }
}
