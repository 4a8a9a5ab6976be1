import { readFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';

/**
 * Physical cores that this process may use. On Linux two hardware threads of a core count as one; elsewhere every
 * processor that Node sees counts (Apple's have one thread a core).
 */
export function physicalCores(): number {
  const usable = availableParallelism();
  if (process.platform !== 'linux') return usable;
  const cores = new Set<string>();
  for (let cpu = 0; cpu < usable; cpu++) {
    try {
      cores.add(readFileSync(`/sys/devices/system/cpu/cpu${cpu}/topology/thread_siblings_list`, 'utf8').trim());
    } catch {
      return usable;
    }
  }
  return Math.max(1, Math.min(usable, cores.size));
}

/**
 * Threads for each of the engines that share this machine. More threads than cores bring two engines to a standstill,
 * because idle ones spin.
 */
export function threadsPerEngine(engines: number, cores = physicalCores()): number {
  return Math.max(1, Math.floor(cores / engines));
}
