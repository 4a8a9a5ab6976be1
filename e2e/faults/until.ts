import { setTimeout as delay } from 'node:timers/promises';

const LIMIT_MS = 20_000;
const STEP_MS = 20;

/**
 * Waits for a condition that nothing announces.
 *
 * @param describe what is so instead, for the error
 */
export async function until(
  what: string,
  condition: () => boolean | Promise<boolean>,
  limitMs = LIMIT_MS,
  describe: () => string = () => '',
): Promise<void> {
  const deadline = performance.now() + limitMs;
  while (!(await condition())) {
    if (performance.now() > deadline) throw new Error(`not within ${limitMs / 1_000} s: ${what} ${describe()}`);
    await delay(STEP_MS);
  }
}

/** What the promise gives, or an error that says what was waited for. */
export async function within<T>(what: string, promise: Promise<T>, limitMs = LIMIT_MS): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const limit = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not within ${limitMs / 1_000} s: ${what}`)), limitMs);
  });
  try {
    return await Promise.race([promise, limit]);
  } finally {
    clearTimeout(timer);
  }
}
