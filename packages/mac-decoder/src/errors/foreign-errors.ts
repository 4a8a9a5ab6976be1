import { MuserError } from '@muser/protocol';

/** What a client may be told of any failure: an error that is not ours may quote data, so its text stays in its cause. */
export function withoutForeignText(thrown: unknown): MuserError {
  if (thrown instanceof MuserError) return thrown;
  return new MuserError('INTERNAL', 'The decoder failed; its log says more.', { cause: thrown });
}
