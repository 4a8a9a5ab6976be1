import { createHash, webcrypto } from 'node:crypto';
import { availableParallelism } from 'node:os';

/** SHA-256 of a shard's payload. The bytes may be changed only after the promise has settled. */
export type PayloadHash = (payload: Uint8Array<ArrayBuffer>) => Promise<Uint8Array>;

/** Cores below which a hash beside the main thread would only take time from the engine's threads. */
const CORES_FOR_BACKGROUND_HASH = 4;

export const hashInline: PayloadHash = (payload) => Promise.resolve(createHash('sha256').update(payload).digest());

/** WebCrypto hashes a copy on libuv's thread pool, which is otherwise idle here. */
export const hashInBackground: PayloadHash = async (payload) =>
  new Uint8Array(await webcrypto.subtle.digest('SHA-256', payload));

export function choosePayloadHash(cores: number = availableParallelism()): PayloadHash {
  return cores >= CORES_FOR_BACKGROUND_HASH ? hashInBackground : hashInline;
}
