/** Codes of the errors that this package raises; they are the same words as in the protocol's list of codes. */
export type ServiceErrorCode =
  | 'CONFIG_INVALID'
  | 'INVALID_REQUEST'
  | 'INTERNAL'
  | 'MESSAGE_TOO_LARGE'
  | 'NOT_FOUND'
  | 'PERMISSION_DENIED'
  | 'PORT_IN_USE'
  | 'STATE_LOCKED'
  | 'UNAVAILABLE';

/** An error of the process's surroundings: its configuration, its folder, its port. The message says what to do. */
export class ServiceError extends Error {
  readonly code: ServiceErrorCode;

  constructor(code: ServiceErrorCode, message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'ServiceError';
    this.code = code;
  }
}

/** Exit codes of every process. 128 + signal number is added for a second signal. */
export const EXIT = {
  /** Closed as asked: by a signal, or because the parent is gone. */
  ok: 0,
  /** Could not start, or crashed; the last log line says why. */
  failed: 1,
  /** Wrong command line or configuration: starting again cannot help. */
  usage: 2,
  /** Was asked to close and did not within the limit; ended all the same. */
  closeLimit: 3,
} as const;

/** What may be shown of an error of any origin: its message and its code, unless that is one of Node's own; never its data. */
export function describeError(error: unknown): { code: string; message: string } {
  if (!(error instanceof Error)) return { code: 'INTERNAL', message: String(error) };
  const code = (error as { code?: unknown }).code;
  const ours = typeof code === 'string' && !('syscall' in error) && !code.startsWith('ERR_');
  return { code: ours ? code : 'INTERNAL', message: error.message };
}
