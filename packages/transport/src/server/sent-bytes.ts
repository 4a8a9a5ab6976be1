import type { Server } from '@grpc/grpc-js';
import { MAX_PEER_BYTES_IN_FLIGHT, MAX_PROCESS_BYTES_IN_FLIGHT } from '../limits.js';
import { PeerBudgets } from '../peer-budgets.js';

const budgets = new WeakMap<Server, PeerBudgets>();

/** What all services of a server share: bytes that the socket layer has and the kernel has not taken yet. */
export function sentBytesOf(server: Server): PeerBudgets {
  let found = budgets.get(server);
  if (found === undefined) {
    found = new PeerBudgets({ processBytes: MAX_PROCESS_BYTES_IN_FLIGHT, peerBytes: MAX_PEER_BYTES_IN_FLIGHT });
    budgets.set(server, found);
  }
  return found;
}
