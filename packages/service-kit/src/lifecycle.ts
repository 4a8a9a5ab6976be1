import { EXIT, describeError } from './errors.js';
import { flushLogger, type Logger } from './logging.js';

export interface RunningService {
  /** Stops taking work, ends or hands over what runs, frees everything. Called once. */
  close(): Promise<void>;
}

export interface ProcessContext {
  /** Aborted when the process is asked to close, also while it still starts. */
  signal: AbortSignal;
  logger: Logger;
}

export interface RunProcessOptions {
  name: string;
  logger: Logger;
  /** Also close when standard input ends. */
  exitWithParent: boolean;
  /** Milliseconds that `close` may take. Default 10,000. */
  closeLimitMs?: number;
  start(context: ProcessContext): Promise<RunningService>;
}

const DEFAULT_CLOSE_LIMIT_MS = 10_000;
const KEEP_ALIVE_INTERVAL_MS = 1 << 30;
const SIGNALS = { SIGINT: 2, SIGTERM: 15 } as const;
type StopSignal = keyof typeof SIGNALS;

/**
 * Runs a process from start to end and returns its exit code (see EXIT). SIGINT, SIGTERM or the parent's end close it,
 * within a limit; a second signal ends it at once. A start that fails is logged and written to standard output as
 * `{"ready":false,"error":{"code","message"}}`, where the starter waits for the ready line. An error that nobody caught
 * ends the process without a close, because its state is unknown then.
 */
export async function runProcess(options: RunProcessOptions): Promise<number> {
  const { name, logger } = options;
  const stop = new AbortController();
  const removeTriggers = installTriggers(options, stop);
  let service: RunningService | undefined;
  try {
    service = await untilAborted(
      options.start({ signal: stop.signal, logger }),
      stop.signal,
      options.closeLimitMs ?? DEFAULT_CLOSE_LIMIT_MS,
    );
    if (service === undefined) return EXIT.closeLimit;
    logger.info(`${name} is ready`);
    await aborted(stop.signal);
    return await closeWithin(service, options);
  } catch (error) {
    if (stop.signal.aborted && service === undefined) return EXIT.ok;
    logger.fatal({ err: error }, `${name} failed`);
    if (service === undefined) printReady({ ready: false, error: describeError(error) });
    return describeError(error).code === 'CONFIG_INVALID' ? EXIT.usage : EXIT.failed;
  } finally {
    removeTriggers();
    await flushLogger(logger);
  }
}

/** The one line on standard output that says that a process is ready (or why not), with its addresses. */
export function printReady(line: Readonly<Record<string, unknown>>): void {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

function installTriggers({ name, logger, exitWithParent }: RunProcessOptions, stop: AbortController): () => void {
  const onSignal = (signal: StopSignal): void => {
    if (stop.signal.aborted) process.exit(128 + SIGNALS[signal]);
    logger.info(`${name} closes on ${signal}`);
    stop.abort(new Error(signal));
  };
  const onParentGone = (): void => {
    if (stop.signal.aborted) return;
    logger.info(`${name} closes because its parent is gone`);
    stop.abort(new Error('parent gone'));
  };
  const onCrash = (error: unknown): void => {
    logger.fatal({ err: error }, `${name} crashed`);
    void flushLogger(logger).then(() => process.exit(EXIT.failed));
  };
  const ignore = (): void => undefined;
  // Signal handlers do not keep a process alive; without this, one that waits for nothing else would just end.
  const keepAlive = setInterval(ignore, KEEP_ALIVE_INTERVAL_MS);
  for (const signal of Object.keys(SIGNALS) as StopSignal[]) process.on(signal, onSignal);
  process.on('uncaughtException', onCrash);
  process.on('unhandledRejection', onCrash);
  // Whoever read the output may be gone; that is not worth a crash, not even in the last moment, so these two stay.
  process.stdout.on('error', ignore);
  process.stderr.on('error', ignore);
  if (exitWithParent) {
    for (const event of ['end', 'close', 'error']) process.stdin.on(event, onParentGone);
    process.stdin.resume();
  }
  return () => {
    clearInterval(keepAlive);
    for (const signal of Object.keys(SIGNALS) as StopSignal[]) process.off(signal, onSignal);
    process.off('uncaughtException', onCrash);
    process.off('unhandledRejection', onCrash);
    if (exitWithParent) {
      for (const event of ['end', 'close', 'error']) process.stdin.off(event, onParentGone);
      process.stdin.pause();
    }
  };
}

/** The promise's value; undefined when it has not settled `limitMs` after the signal was aborted. */
async function untilAborted<T>(promise: Promise<T>, signal: AbortSignal, limitMs: number): Promise<T | undefined> {
  let timer: NodeJS.Timeout | undefined;
  let settled = false;
  const limit = aborted(signal).then(
    () =>
      new Promise<undefined>((resolve) => {
        // A timer that is started after the promise has settled would keep the process alive.
        if (!settled) timer = setTimeout(() => resolve(undefined), limitMs);
      }),
  );
  try {
    return await Promise.race([promise, limit]);
  } finally {
    settled = true;
    clearTimeout(timer);
  }
}

async function closeWithin(
  service: RunningService,
  { name, logger, closeLimitMs }: RunProcessOptions,
): Promise<number> {
  const limitMs = closeLimitMs ?? DEFAULT_CLOSE_LIMIT_MS;
  let timer: NodeJS.Timeout | undefined;
  const limit = new Promise<'limit'>((resolve) => {
    timer = setTimeout(() => resolve('limit'), limitMs);
  });
  const outcome = await Promise.race([service.close(), limit]);
  clearTimeout(timer);
  if (outcome !== 'limit') return EXIT.ok;
  logger.error(`${name} did not close within ${limitMs} ms and is ended`);
  return EXIT.closeLimit;
}

function aborted(signal: AbortSignal): Promise<void> {
  if (signal.aborted) return Promise.resolve();
  return new Promise((resolve) => signal.addEventListener('abort', () => resolve(), { once: true }));
}
