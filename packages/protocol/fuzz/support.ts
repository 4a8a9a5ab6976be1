import { isErrorCode, MuserError } from '../src/errors.js';

/** The value of a call, or null when it throws a MuserError. Anything else that it throws is a finding. */
export function valueOf<T>(call: () => T): { result: T } | null {
  try {
    return { result: call() };
  } catch (error) {
    refusal(error);
    return null;
  }
}

/** @throws what was thrown when it is no MuserError with a code of the closed list */
export function refusal(thrown: unknown): MuserError {
  if (thrown instanceof MuserError && isErrorCode(thrown.code)) return thrown;
  throw thrown;
}
