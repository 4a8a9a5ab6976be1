/** What went wrong, as a closed list. Processes map these to their own wire codes. */
export type EngineErrorCode =
  | 'MODEL_LOAD_FAILED'
  | 'MODEL_UNSUPPORTED'
  | 'CANCELLED'
  | 'CONTEXT_FULL'
  | 'OUT_OF_MEMORY'
  | 'SEQUENCE_STATE'
  | 'RANGE_VIOLATION'
  | 'VALUE_INVALID'
  | 'INVALID_ARGUMENT'
  | 'ENGINE_FAILED'
  | 'ADDON_UNAVAILABLE';

const CODES: ReadonlySet<string> = new Set<EngineErrorCode>([
  'MODEL_LOAD_FAILED',
  'MODEL_UNSUPPORTED',
  'CANCELLED',
  'CONTEXT_FULL',
  'OUT_OF_MEMORY',
  'SEQUENCE_STATE',
  'RANGE_VIOLATION',
  'VALUE_INVALID',
  'INVALID_ARGUMENT',
  'ENGINE_FAILED',
  'ADDON_UNAVAILABLE',
]);

/** The only error class that leaves this package. Messages carry numbers and names, never prompt text. */
export class EngineError extends Error {
  override readonly name = 'EngineError';
  readonly code: EngineErrorCode;

  constructor(code: EngineErrorCode, message: string, options?: { cause?: unknown }) {
    super(message, options);
    this.code = code;
  }
}

/** About a user's file. Their messages are for people, who know no calls. */
const OF_FILES: ReadonlySet<string> = new Set<EngineErrorCode>(['MODEL_LOAD_FAILED', 'MODEL_UNSUPPORTED']);

/** Gives a native failure its class. What the addon did not name itself is ENGINE_FAILED, with the call's path. */
export function toEngineError(path: string, error: unknown): EngineError {
  if (error instanceof EngineError) return error;
  const code: unknown = error instanceof Error && 'code' in error ? error.code : undefined;
  const message = error instanceof Error ? error.message : String(error);
  if (typeof code === 'string' && CODES.has(code)) {
    const text = OF_FILES.has(code) ? message : `${path}: ${message}`;
    return new EngineError(code as EngineErrorCode, text, { cause: error });
  }
  return new EngineError('ENGINE_FAILED', `${path}: unexpected native failure: ${message}`, { cause: error });
}

const tracing = process.env['MUSER_TRACE_NATIVE'] === '1';

/** Every synchronous call into the addon goes through here: one place that classifies errors and traces calls. */
export function callNative<T>(path: string, call: () => T): T {
  if (tracing) process.stderr.write(`native ${path}\n`);
  try {
    return call();
  } catch (error) {
    throw toEngineError(path, error);
  }
}

/** As {@link callNative} for calls that return a promise. */
export async function awaitNative<T>(path: string, call: () => Promise<T>): Promise<T> {
  const pending = callNative(path, call);
  try {
    return await pending;
  } catch (error) {
    throw toEngineError(path, error);
  }
}

interface Cancellable<T> {
  readonly promise: Promise<T>;
  cancel(): void;
}

/** Wraps a callback so that what it throws ends the task and reaches the caller. */
export type CallbackGuard = <A extends unknown[]>(callback: (...args: A) => void) => (...args: A) => void;

/**
 * Runs a native task whose cancel switch is tied to `signal`; an aborted task rejects with CANCELLED, and one whose
 * callback throws rejects with what was thrown. `start` must wrap every callback that it hands over.
 */
export async function runTask<T>(
  path: string,
  signal: AbortSignal | null,
  start: (guard: CallbackGuard) => Cancellable<T>,
): Promise<T> {
  if (signal?.aborted) throw new EngineError('CANCELLED', `${path}: cancelled before it started`);
  let thrown: { error: unknown } | null = null;
  const guard: CallbackGuard =
    (callback) =>
    (...args) => {
      if (thrown !== null) return;
      try {
        callback(...args);
      } catch (error) {
        thrown = { error };
        cancel();
      }
    };
  const task = callNative(path, () => start(guard));
  const cancel = (): void => {
    task.cancel();
  };
  signal?.addEventListener('abort', cancel, { once: true });
  try {
    const [outcome] = await Promise.allSettled([task.promise]);
    // The type checker does not see that a callback may have set it.
    const failure = thrown as { error: unknown } | null;
    if (failure !== null) throw failure.error;
    if (outcome.status === 'rejected') throw toEngineError(path, outcome.reason);
    return outcome.value;
  } finally {
    signal?.removeEventListener('abort', cancel);
  }
}
