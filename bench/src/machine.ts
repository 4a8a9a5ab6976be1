import { availableParallelism, cpus, totalmem } from 'node:os';
import { fileURLToPath } from 'node:url';

/** What a reader must know of the machine to compare figures. */
export function machine(): object {
  return {
    processor: cpus()[0]?.model ?? 'unknown',
    cores: availableParallelism(),
    memoryGiB: Math.round(totalmem() / 2 ** 30),
    platform: `${process.platform}-${process.arch}`,
    node: process.version,
  };
}

/** A path in the repository. */
export const inRepository = (path: string): string => fileURLToPath(new URL(`../../${path}`, import.meta.url));

export const MUSE_NANO = inRepository('models/muse-nano/muse-nano-q8_0.gguf');

/** Threads for one engine that has the machine to itself; more threads than cores is ten times slower. */
export const ENGINE_THREADS = Math.max(1, Math.min(8, availableParallelism()));
