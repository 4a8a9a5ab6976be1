import { createHash, webcrypto } from 'node:crypto';
import { availableParallelism } from 'node:os';

/** SHA-256, 32 bytes. */
export type PayloadHash = (payload: Uint8Array) => Uint8Array | Promise<Uint8Array>;

/** With fewer cores the thread pool only takes time from the network thread, or from the other end on the same machine. */
const MIN_CORES_FOR_POOL = 4;

/** On the calling thread. */
export const hashInline: PayloadHash = (payload) => createHash('sha256').update(payload).digest();

/** On libuv's thread pool; the payload is copied when called and may be reused at once. */
export const hashOnPool: PayloadHash = async (payload) =>
  new Uint8Array(await webcrypto.subtle.digest('SHA-256', payload));

/** The faster of the two on this machine, for both ends of a transfer. */
export const hashPayload: PayloadHash = availableParallelism() >= MIN_CORES_FOR_POOL ? hashOnPool : hashInline;
