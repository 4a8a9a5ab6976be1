import type { RunningService } from './lifecycle.js';

/** Frees one part of a service. */
export type Closer = () => unknown;

/**
 * Starts a service that consists of parts. `start` registers how each part is freed as soon as it is there. Parts are
 * freed in the reverse order, by `close` or when a later part does not start. One that cannot be freed does not keep
 * the others; the first such failure is what `close` throws in the end.
 *
 * @returns what `start` returned, with `close`, which may be called any number of times
 * @throws what `start` throws
 */
export async function startParts<T extends object>(
  start: (onClose: (closer: Closer) => void) => Promise<T>,
): Promise<T & RunningService> {
  const closers: Closer[] = [];
  const close = async (): Promise<void> => {
    const failures: unknown[] = [];
    for (let closer = closers.pop(); closer !== undefined; closer = closers.pop()) {
      try {
        await closer();
      } catch (error) {
        failures.push(error);
      }
    }
    if (failures.length > 0) throw failures[0];
  };
  try {
    return { ...(await start((closer) => closers.push(closer))), close };
  } catch (error) {
    // Why it did not start says more than why it could not be taken down.
    await close().catch(() => undefined);
    throw error;
  }
}
