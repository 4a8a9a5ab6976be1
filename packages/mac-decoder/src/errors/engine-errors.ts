import { EngineError, type EngineErrorCode } from '@muser/metal';
import { MuserError, toMuserError, type ErrorCode } from '@muser/protocol';

/** The engine's codes in the words of the closed list that crosses borders. */
const CODES: Readonly<Record<EngineErrorCode, ErrorCode>> = {
  MODEL_LOAD_FAILED: 'MODEL_LOAD_FAILED',
  MODEL_UNSUPPORTED: 'MODEL_UNSUPPORTED',
  CANCELLED: 'CANCELLED',
  CONTEXT_FULL: 'CONTEXT_FULL',
  OUT_OF_MEMORY: 'OUT_OF_MEMORY',
  SEQUENCE_STATE: 'SEQUENCE_STATE',
  RANGE_VIOLATION: 'RANGE_VIOLATION',
  VALUE_INVALID: 'VALUE_INVALID',
  // The API has checked every value by then, so a refused argument is a fault of ours.
  INVALID_ARGUMENT: 'INTERNAL',
  ENGINE_FAILED: 'ENGINE_FAILED',
  ADDON_UNAVAILABLE: 'ADDON_UNAVAILABLE',
};

export function fromEngineError(error: unknown): MuserError {
  if (error instanceof EngineError) return new MuserError(CODES[error.code], error.message, { cause: error });
  return toMuserError(error, 'ENGINE_FAILED');
}

/** Awaits an engine call; what it throws is a MuserError. */
export async function engineCall<T>(call: () => T | Promise<T>): Promise<T> {
  try {
    return await call();
  } catch (error) {
    throw fromEngineError(error);
  }
}

/** The same for the engine's synchronous calls. */
export function engineCallSync<T>(call: () => T): T {
  try {
    return call();
  } catch (error) {
    throw fromEngineError(error);
  }
}
