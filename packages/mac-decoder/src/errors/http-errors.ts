import {
  ERROR_CODES,
  isErrorCode,
  MuserError,
  toMuserError,
  withoutForeignText,
  type ErrorCode,
} from '@muser/protocol';
import type { z } from 'zod';

/** An error in OpenAI's form; `code` is ours. */
export interface OpenAiError {
  readonly error: {
    readonly message: string;
    readonly type: string;
    readonly code: ErrorCode;
    readonly param: string | null;
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
  const { param } = error.details;
  return {
    status,
    body: {
      error: {
        message: error.message,
        type: TYPES[status] ?? (status < 500 ? 'invalid_request_error' : 'server_error'),
        code: error.code,
        param: typeof param === 'string' ? param : null,
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

function classify(thrown: unknown): MuserError {
  if (thrown instanceof MuserError) return thrown;
  const { code, statusCode } = thrown as { code?: unknown; statusCode?: unknown };
  if (typeof statusCode === 'number' && statusCode >= 400 && statusCode < 500) {
    // The HTTP server's own errors for malformed requests. Their messages may quote the body.
    if (statusCode === 413) return new MuserError('MESSAGE_TOO_LARGE', 'The request body is too large.');
    return new MuserError('INVALID_REQUEST', 'The request is not valid: a JSON object is expected.', { cause: thrown });
  }
  // The service kit's errors have codes of the same list, and messages made for people.
  if (isErrorCode(code)) return toMuserError(thrown, code);
  return withoutForeignText(thrown);
}

/** `["messages", 0, "content"]` as `messages[0].content`. */
function pathText(path: readonly PropertyKey[]): string {
  return path
    .map((key, index) => (typeof key === 'number' ? `[${key}]` : `${index === 0 ? '' : '.'}${String(key)}`))
    .join('')
    .slice(0, 200);
}
