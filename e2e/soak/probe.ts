// Loaded into a process of ours by `node --import`: on SIGUSR2 it collects garbage and writes what it holds to a file.
import { renameSync, writeFileSync } from 'node:fs';

/** What Node says of itself. */
export interface Probed {
  readonly heapUsed: number;
  readonly external: number;
  readonly arrayBuffers: number;
  /** Open handles and running requests of libuv by kind. */
  readonly resources: Readonly<Record<string, number>>;
}

const file = process.env['SOAK_PROBE_FILE'];

process.on('SIGUSR2', () => {
  if (file === undefined) return;
  // Twice: what a finalizer frees is collected by the next run.
  globalThis.gc?.();
  setImmediate(() => {
    globalThis.gc?.();
    const { heapUsed, external, arrayBuffers } = process.memoryUsage();
    const resources: Record<string, number> = {};
    for (const kind of process.getActiveResourcesInfo()) resources[kind] = (resources[kind] ?? 0) + 1;
    const probed: Probed = { heapUsed, external, arrayBuffers, resources };
    writeFileSync(`${file}.new`, JSON.stringify(probed));
    renameSync(`${file}.new`, file);
  });
});
