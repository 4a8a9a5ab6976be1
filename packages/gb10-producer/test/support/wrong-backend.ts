import { type KvKind, rowBytesOf, type ShardPlan } from '@muser/protocol';

import type {
  BackendModel,
  BackendStats,
  PrefillBackend,
  PrefillChunk,
  PrefillRun,
  PrefillTask,
} from '../../src/backend/backend.js';

export interface Wrong {
  /** What it says of its model. */
  readonly model?: BackendModel;
  readonly task?: (task: PrefillTask) => PrefillTask;
  readonly chunk?: (chunk: PrefillChunk) => PrefillChunk;
}

/** A real engine's rows with one thing wrong. */
export class WrongBackend implements PrefillBackend {
  readonly name: string;
  readonly model: BackendModel;
  readonly engine: PrefillBackend['engine'];
  readonly limits: PrefillBackend['limits'];
  readonly health = { state: 'ready' } as const;
  readonly #backend: PrefillBackend;
  readonly #wrong: Wrong;

  constructor(backend: PrefillBackend, wrong: Wrong) {
    this.#backend = backend;
    this.#wrong = wrong;
    this.name = backend.name;
    this.model = wrong.model ?? backend.model;
    this.engine = backend.engine;
    this.limits = backend.limits;
  }

  prefill(task: PrefillTask): PrefillRun {
    const { task: changeTask = (one: PrefillTask) => one, chunk: changeChunk = (one: PrefillChunk) => one } =
      this.#wrong;
    const run = this.#backend.prefill(changeTask(task));
    async function* chunks(): AsyncGenerator<PrefillChunk, void, undefined> {
      for await (const chunk of run) yield changeChunk(chunk);
    }
    return { timings: run.timings, computed: run.computed, [Symbol.asyncIterator]: () => chunks() };
  }

  stats(): BackendStats {
    return this.#backend.stats();
  }

  close(): Promise<void> {
    return this.#backend.close();
  }
}

/** A chunk with another way to read a shard. */
export function reading(chunk: PrefillChunk, readShard: PrefillChunk['readShard']): PrefillChunk {
  return { ...chunk, readShard, release: () => chunk.release() };
}

/** Changes every row of 2-byte elements, in place. */
export function changeRows(
  geometry: BackendModel['geometry'],
  change: (row: Uint16Array, layer: number, kind: KvKind) => void,
): Wrong {
  const rowBytes = rowBytesOf(geometry);
  return {
    chunk: (chunk) =>
      reading(chunk, async (plan: ShardPlan, target) => {
        await chunk.readShard(plan, target);
        for (const [index, { layer, kind }] of plan.parts.entries()) {
          for (let token = 0; token < plan.tokenCount; token += 1) {
            const at = target.byteOffset + (index * plan.tokenCount + token) * rowBytes;
            change(new Uint16Array(target.buffer, at, rowBytes / 2), layer, kind);
          }
        }
      }),
  };
}
