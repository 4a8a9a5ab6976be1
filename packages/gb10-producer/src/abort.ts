/** Waits for the promise, but no longer than until the signal aborts; rejects with the signal's reason then. */
export async function orAborted<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  // Whoever loses the race may still reject; nobody waits for it any more.
  promise.catch(() => {});
  signal.throwIfAborted();
  let onAbort: () => void = () => {};
  const aborted = new Promise<never>((_, reject) => {
    onAbort = () => reject(signal.reason as Error);
    signal.addEventListener('abort', onAbort, { once: true });
  });
  try {
    return await Promise.race([promise, aborted]);
  } finally {
    signal.removeEventListener('abort', onAbort);
  }
}

/** Waits for the promise, but no longer than `limitMs`; rejects with what `late` makes then. */
export async function orLate<T>(promise: Promise<T>, limitMs: number, late: () => Error): Promise<T> {
  promise.catch(() => {});
  let timer: NodeJS.Timeout | undefined;
  const expired = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(late()), limitMs);
  });
  try {
    return await Promise.race([promise, expired]);
  } finally {
    clearTimeout(timer);
  }
}

/** Waits, but no longer than until one of the signals aborts. Never rejects. */
export async function pause(milliseconds: number, ...signals: AbortSignal[]): Promise<void> {
  if (signals.some((signal) => signal.aborted)) return;
  let wake: () => void = () => {};
  const woken = new Promise<void>((resolve) => (wake = resolve));
  const timer = setTimeout(wake, milliseconds);
  for (const signal of signals) signal.addEventListener('abort', wake, { once: true });
  try {
    await woken;
  } finally {
    clearTimeout(timer);
    for (const signal of signals) signal.removeEventListener('abort', wake);
  }
}
