import { MuserError } from '@muser/protocol';

import type { FrameConnection } from './connection.js';
import {
  BRIDGE_LIMITS,
  type DataHello,
  type NodeFrames,
  type Payload,
  type Range,
  type ReadFailure,
  type WorkerFrame,
} from './schema.js';

export type ReadRequest = Omit<NodeFrames['read'], 'read'>;

interface PendingRead {
  readonly request: ReadRequest;
  readonly bytes: number;
  readonly take: (payload: Payload) => void;
  readonly settle: (error: MuserError | null) => void;
}

/** The data link of one rank: rows are asked for by number and answered in any order. */
export class RankLink {
  readonly rank: number;
  readonly pid: number;
  /** Layers and KV heads that this rank computes, [first, end). */
  readonly layers: Range;
  readonly heads: Range;
  readonly #connection: FrameConnection;
  readonly #asked = new Map<number, PendingRead>();
  /** Beyond the number of reads that a worker takes at once. */
  readonly #waiting: PendingRead[] = [];
  #reads = 0;
  #broken: MuserError | null = null;

  constructor(connection: FrameConnection, hello: DataHello) {
    this.rank = hello.rank;
    this.pid = hello.pid;
    this.layers = hello.layers;
    this.heads = hello.heads;
    this.#connection = connection;
  }

  /**
   * Reads rows of one announced chunk. `take` gets them once, `bytes` long, and must copy what it keeps.
   * @throws MuserError when the worker cannot give them or has ended
   */
  read(request: ReadRequest, bytes: number, take: (payload: Payload) => void): Promise<void> {
    return new Promise((resolve, reject) => {
      if (this.#broken !== null) return reject(this.#broken);
      const settle = (error: MuserError | null): void => (error === null ? resolve() : reject(error));
      this.#waiting.push({ request, bytes, take, settle });
      this.#ask();
    });
  }

  release(id: string, index: number): void {
    this.#connection.send('release', { id, index });
  }

  done(id: string): void {
    this.#connection.send('done', { id });
  }

  /** @throws MuserError for an answer to nothing that was asked, or of another length */
  answer(frame: Extract<WorkerFrame, { kind: 'rows' | 'failed' }>): void {
    const { read } = frame.header;
    const pending = this.#asked.get(read);
    if (pending === undefined) throw new MuserError('ORDER_VIOLATION', `rank ${this.rank} answers read ${read}`);
    if (frame.kind === 'rows' && frame.payload.length !== pending.bytes) {
      const message = `rank ${this.rank} sent ${frame.payload.length} of ${pending.bytes} bytes of rows`;
      throw new MuserError('MESSAGE_INVALID', message);
    }
    this.#asked.delete(read);
    if (frame.kind === 'rows') {
      pending.take(frame.payload);
      pending.settle(null);
    } else {
      pending.settle(readError(frame.header.code));
    }
    this.#ask();
  }

  /** Rejects every read, now and from now on. */
  fail(error: MuserError): void {
    this.#broken ??= error;
    for (const { settle } of [...this.#asked.values(), ...this.#waiting.splice(0)]) settle(this.#broken);
    this.#asked.clear();
  }

  #ask(): void {
    while (this.#asked.size < BRIDGE_LIMITS.pendingReads) {
      const next = this.#waiting.shift();
      if (next === undefined) return;
      const read = this.#reads++;
      this.#asked.set(read, next);
      this.#connection.send('read', { read, ...next.request });
    }
  }
}

const READ_ERRORS = {
  UNKNOWN: ['SEQUENCE_STATE', 'the worker does not have the chunk that was asked for'],
  RANGE: ['RANGE_VIOLATION', 'the worker does not have the rows that were asked for'],
  CANCELLED: ['CANCELLED', 'the prefill was cancelled'],
  PREEMPTED: ['CONTEXT_FULL', 'vLLM had to give the memory of this prefill to another one'],
  STAGING_FULL: ['RESOURCE_EXHAUSTED', 'the reader is behind and the memory for computed window rows is full'],
  LEASE_EXPIRED: ['STALLED', 'the rows were not read in time after the prefill had ended'],
  ENGINE_FAILED: ['ENGINE_FAILED', 'vLLM failed'],
} as const satisfies Record<ReadFailure, readonly [string, string]>;

/** What a reader is told when rows cannot be had. */
export function readError(code: ReadFailure): MuserError {
  const [ours, message] = READ_ERRORS[code];
  return new MuserError(ours, message);
}
