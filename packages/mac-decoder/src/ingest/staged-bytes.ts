import { PeerBudgets } from '@muser/transport';

const MIB = 1024 * 1024;

/** Bytes of chunks between wire and cache. A producer whose chunks are larger than the first is refused at Begin. */
export const MAX_STAGED_TRANSFER_BYTES = 512 * MIB;
export const MAX_STAGED_PRODUCER_BYTES = 1024 * MIB;
export const MAX_STAGED_PROCESS_BYTES = 2048 * MIB;

/** Of this decoder, with a part for each producer. */
export function stagedBytes(): PeerBudgets {
  return new PeerBudgets({ processBytes: MAX_STAGED_PROCESS_BYTES, peerBytes: MAX_STAGED_PRODUCER_BYTES });
}
