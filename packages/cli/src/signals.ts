import { InterruptedError } from './exit.js';

const SIGNALS = { SIGINT: 130, SIGTERM: 143, SIGHUP: 129 } as const;

export interface Interrupts {
  /** Aborts with an InterruptedError at the first signal. */
  readonly signal: AbortSignal;
  /** Gives the signals back to Node's default handling. */
  dispose(): void;
}

/** Listens for Ctrl-C, SIGTERM and a closed terminal. A second signal calls `onSecond`, which must end the process soon. */
export function listenForInterrupts(onSecond: (exitCode: number) => void = (code) => process.exit(code)): Interrupts {
  const controller = new AbortController();
  const handlers = Object.entries(SIGNALS).map(([name, exitCode]) => {
    const handler = (): void => {
      if (controller.signal.aborted) onSecond(exitCode);
      else controller.abort(new InterruptedError(exitCode));
    };
    process.on(name, handler);
    return () => process.off(name, handler);
  });
  return {
    signal: controller.signal,
    dispose: () => handlers.forEach((remove) => remove()),
  };
}
