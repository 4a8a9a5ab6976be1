import { MuserError } from '@muser/protocol';
import { ServiceError } from '@muser/service-kit';

/** The service kit's errors have codes of the same list. */
export async function asOurs<T>(call: Promise<T>): Promise<T> {
  try {
    return await call;
  } catch (error) {
    if (error instanceof ServiceError) throw new MuserError(error.code, error.message, { cause: error });
    throw error;
  }
}
