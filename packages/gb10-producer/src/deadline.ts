import { MuserError } from '@muser/protocol';

/** Does `work` with a signal that aborts with the given one, or when `limitMs` have passed. @throws its reason then */
export async function withinLimit<T>(
  { signal, limitMs, what }: { signal: AbortSignal; limitMs: number; what: string },
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const late = new AbortController();
  const timer = setTimeout(() => {
    late.abort(new MuserError('DEADLINE_EXCEEDED', `${what} takes longer than ${limitMs / 1000} s`));
  }, limitMs);
  const either = AbortSignal.any([signal, late.signal]);
  try {
    return await work(either);
  } catch (error) {
    throw either.aborted ? either.reason : error;
  } finally {
    clearTimeout(timer);
  }
}
