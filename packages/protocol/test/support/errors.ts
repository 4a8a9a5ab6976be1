import { expect } from 'vitest';
import { type ErrorCode, MuserError } from '../../src/errors.js';

/** The MuserError that `call` throws or rejects with; fails when it does not, or throws anything else. */
export async function failureOf(call: () => unknown): Promise<MuserError> {
  let result: unknown;
  try {
    result = await call();
  } catch (thrown) {
    expect(thrown).toBeInstanceOf(MuserError);
    return thrown as MuserError;
  }
  throw new Error(`did not fail, but gave ${String(result)}`);
}

export async function expectCode(call: () => unknown, code: ErrorCode): Promise<MuserError> {
  const error = await failureOf(call);
  expect(`${error.code}: ${error.message}`).toMatch(new RegExp(`^${code}: `));
  return error;
}
