import { createHash, webcrypto } from 'node:crypto';
import { availableParallelism } from 'node:os';

/** SHA-256, 32 bytes. */
export type PayloadHash = (payload: Uint8Array) => Uint8Array | Promise<Uint8Array>;

/**
 * The pool costs a few percent more processor time and wins wall-clock time as soon as there is a second core, also when both
 * ends of the stream share two of them (bench transport: 0.70 to 0.99 of a raw socket's rate, inline 0.55 to 0.73).
 */
const MIN_CORES_FOR_POOL = 2;

/** On the calling thread. */
export const hashInline: PayloadHash = (payload) => createHash('sha256').update(payload).digest();

/** On libuv's thread pool; the payload is copied when called and may be reused at once. */
export const hashOnPool: PayloadHash = async (payload) =>
  new Uint8Array(await webcrypto.subtle.digest('SHA-256', payload));

/** The faster of the two on this machine, for both ends of a transfer. */
export const hashPayload: PayloadHash = availableParallelism() >= MIN_CORES_FOR_POOL ? hashOnPool : hashInline;
