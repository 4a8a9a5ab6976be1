import type { ErrorCode } from '@muser/protocol';

/** Exit codes of every command. They are part of the interface: scripts test them. */
export const EXIT = { ok: 0, failed: 1, usage: 2, unreachable: 3, interrupted: 130 } as const;

export const EXIT_CODES_HELP = `
Exit codes:
  0    answered (also when the reader of the output closed its end early)
  1    the request failed
  2    wrong usage: an unknown flag, a missing question, a file that cannot be used
  3    no decoder can be reached
  130  interrupted by Ctrl-C; the request is cancelled at the decoder`;

export interface CliErrorOptions {
  /** What the user can do about it, as a sentence of its own. */
  advice?: string;
  cause?: unknown;
}

/** An error that is shown to the user as it is, without a stack. */
export class CliError extends Error {
  override readonly name = 'CliError';
  readonly advice: string | null;

  constructor(
    readonly exitCode: number,
    readonly code: ErrorCode,
    message: string,
    options: CliErrorOptions = {},
  ) {
    super(message, options.cause === undefined ? {} : { cause: options.cause });
    this.advice = options.advice ?? null;
  }
}

export function usageError(message: string, advice?: string): CliError {
  return new CliError(EXIT.usage, 'INVALID_REQUEST', message, advice === undefined ? {} : { advice });
}

/** A signal ended the command. `exitCode` is 128 + the signal's number, as shells report it. */
export class InterruptedError extends Error {
  override readonly name = 'InterruptedError';
  constructor(readonly exitCode: number = EXIT.interrupted) {
    super('interrupted');
  }
}

/** Nobody reads standard output any more (`muser ask … | head -1`). Not a failure. */
export class BrokenPipeError extends Error {
  override readonly name = 'BrokenPipeError';
  constructor() {
    super('standard output was closed');
  }
}
