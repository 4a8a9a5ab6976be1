import { EngineError, type EngineErrorCode } from '@muser/metal';
import { type ErrorCode, MuserError, toMuserError } from '@muser/protocol';

const CODES = {
  MODEL_LOAD_FAILED: 'MODEL_LOAD_FAILED',
  MODEL_UNSUPPORTED: 'MODEL_UNSUPPORTED',
  CANCELLED: 'CANCELLED',
  CONTEXT_FULL: 'CONTEXT_FULL',
  OUT_OF_MEMORY: 'OUT_OF_MEMORY',
  SEQUENCE_STATE: 'SEQUENCE_STATE',
  RANGE_VIOLATION: 'RANGE_VIOLATION',
  VALUE_INVALID: 'VALUE_INVALID',
  INVALID_ARGUMENT: 'INVALID_REQUEST',
  ENGINE_FAILED: 'ENGINE_FAILED',
  ADDON_UNAVAILABLE: 'ADDON_UNAVAILABLE',
} as const satisfies Record<EngineErrorCode, ErrorCode>;

/** The one place where the engine's errors become ours. */
export function fromEngineError(error: unknown): MuserError {
  if (error instanceof EngineError) return new MuserError(CODES[error.code], error.message, { cause: error });
  return toMuserError(error, 'ENGINE_FAILED');
}
