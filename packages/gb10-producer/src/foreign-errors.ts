import { MuserError } from '@muser/protocol';

/** What may be told to a peer of any failure: an error that is not ours may quote data, so only its cause keeps its text. */
export function withoutForeignText(cause: unknown): MuserError {
  return cause instanceof MuserError ? cause : new MuserError('INTERNAL', 'internal error of the producer', { cause });
}
