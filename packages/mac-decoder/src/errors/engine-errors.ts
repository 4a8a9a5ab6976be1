import { fromEngineError } from '@muser/protocol';

/** Awaits an engine call; what it throws is a MuserError. */
export async function engineCall<T>(call: () => T | Promise<T>): Promise<T> {
  try {
    return await call();
  } catch (error) {
    throw fromEngineError(error);
  }
}

/** The same for the engine's synchronous calls. */
export function engineCallSync<T>(call: () => T): T {
  try {
    return call();
  } catch (error) {
    throw fromEngineError(error);
  }
}
