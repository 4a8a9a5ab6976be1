import { MuserError, type ErrorCode } from '@muser/protocol';
import { ServiceError } from '@muser/service-kit';
import { CliError, EXIT } from './exit.js';

type Explanation = readonly [reason: string, code: ErrorCode, exitCode: number];

/** What file systems refuse, by Node's code. The first ones are about the path that was given. */
const FILE_SYSTEM_ERRORS: Readonly<Record<string, Explanation>> = {
  ENOENT: ['is not there', 'INVALID_REQUEST', EXIT.usage],
  ENOTDIR: ['is no folder, or lies below a file', 'INVALID_REQUEST', EXIT.usage],
  EISDIR: ['is a folder', 'INVALID_REQUEST', EXIT.usage],
  ELOOP: ['is a symbolic link that leads back to itself', 'INVALID_REQUEST', EXIT.usage],
  ENAMETOOLONG: ['is a name that is too long', 'INVALID_REQUEST', EXIT.usage],
  EACCES: ['may not be used by this user', 'PERMISSION_DENIED', EXIT.failed],
  EPERM: ['may not be used by this user', 'PERMISSION_DENIED', EXIT.failed],
  EROFS: ['is on a file system that cannot be written to', 'PERMISSION_DENIED', EXIT.failed],
  EEXIST: ['is there already', 'INVALID_REQUEST', EXIT.failed],
  ENOTEMPTY: ['is a folder that is not empty', 'INVALID_REQUEST', EXIT.failed],
  ENXIO: ['is a pipe or a socket, not a file', 'INVALID_REQUEST', EXIT.usage],
  EIO: ['cannot be read or written: the device failed', 'UNAVAILABLE', EXIT.failed],
  ENOSPC: ['cannot be written: the disk is full', 'RESOURCE_EXHAUSTED', EXIT.failed],
  EDQUOT: ['cannot be written: the quota is used up', 'RESOURCE_EXHAUSTED', EXIT.failed],
  EMFILE: ['cannot be opened: too many files are open', 'RESOURCE_EXHAUSTED', EXIT.failed],
  ENFILE: ['cannot be opened: too many files are open', 'RESOURCE_EXHAUSTED', EXIT.failed],
};

/** An error as it is shown to the user, whoever raised it; null for a fault of this program. */
export function explained(error: unknown): CliError | null {
  if (error instanceof CliError) return error;
  if (error instanceof ServiceError || error instanceof MuserError) {
    return new CliError(EXIT.failed, error.code, error.message, { cause: error });
  }
  return error instanceof Error ? explainedFileError(error) : null;
}

/** Of Node's text only the code and the path are told. */
function explainedFileError(error: NodeJS.ErrnoException): CliError | null {
  const found = error.syscall === undefined ? undefined : FILE_SYSTEM_ERRORS[error.code ?? ''];
  if (found === undefined) return null;
  const [reason, code, exitCode] = found;
  const message = `${error.path ?? 'a file'} ${reason} (${error.code ?? ''})`;
  return new CliError(exitCode, code, message, { cause: error });
}
