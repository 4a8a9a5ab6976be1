import { ERROR_CODES, MuserError, withoutForeignText, type ErrorCode, type ErrorDetails } from '@muser/protocol';
import { ServiceError } from '@muser/service-kit';
import type { z } from 'zod';

/** An error in OpenAI's form with ours in it: `code`, `retryable` and `details` are those of docs/ERRORS.md. */
export interface OpenAiError {
  readonly error: {
    readonly message: string;
    readonly type: string;
    readonly code: ErrorCode;
    readonly param: string | null;
    readonly retryable: boolean;
    readonly details: ErrorDetails;
  };
}

const TYPES: Readonly<Record<number, string>> = {
  401: 'authentication_error',
  403: 'permission_error',
  404: 'not_found_error',
  429: 'rate_limit_error',
};

/** Status and body for whatever a request ended with. */
export function toHttpError(thrown: unknown): { status: number; body: OpenAiError } {
  const error = classify(thrown);
  const status = ERROR_CODES[error.code].httpStatus;
  const { message, code, retryable, details } = error.toJSON();
  const { param } = details;
  return {
    status,
    body: {
      error: {
        message,
        type: TYPES[status] ?? (status < 500 ? 'invalid_request_error' : 'server_error'),
        code,
        param: typeof param === 'string' ? param : null,
        retryable,
        details,
      },
    },
  };
}

/** A body that does not fit its schema: names the first parameter that is wrong. */
export function invalidBody(error: z.ZodError): MuserError {
  const issue = error.issues[0];
  const param = issue === undefined ? '' : pathText(issue.path);
  const message = issue?.message ?? 'The request body is not valid.';
  return invalidParameter(param, message);
}

/** A parameter that is of the right type and still cannot be used. */
export function invalidParameter(param: string, message: string): MuserError {
  return new MuserError('INVALID_REQUEST', param === '' ? message : `${param}: ${message}`, {
    ...(param === '' ? {} : { details: { param } }),
  });
}

/** The service kit's errors have codes of the same list, and messages made for people. */
function classify(thrown: unknown): MuserError {
  if (thrown instanceof ServiceError) return new MuserError(thrown.code, thrown.message, { cause: thrown });
  return withoutForeignText(thrown);
}

/** `["messages", 0, "content"]` as `messages[0].content`. */
function pathText(path: readonly PropertyKey[]): string {
  return path
    .map((key, index) => (typeof key === 'number' ? `[${key}]` : `${index === 0 ? '' : '.'}${String(key)}`))
    .join('')
    .slice(0, 200);
}
