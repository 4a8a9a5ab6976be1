import { setImmediate } from 'node:timers/promises';

/** Looks again and again until there is something to see; the test's own time limit ends a wait in vain. */
export async function until<T>(look: () => T | Promise<T>, holds: (seen: T) => boolean): Promise<T> {
  for (;;) {
    const seen = await look();
    if (holds(seen)) return seen;
    await setImmediate();
  }
}

/** Lets everything run that is ready to run, messages on loopback connections too. */
export async function settle(): Promise<void> {
  for (let turn = 0; turn < 50; turn += 1) await setImmediate();
}
