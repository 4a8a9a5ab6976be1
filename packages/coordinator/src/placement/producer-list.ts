import { MAX_PRODUCERS, MIN_PROMPT_TOKENS, type ProducerEntry, type ProducerList } from '@muser/protocol';

import type { NodeEntry } from '../nodes/node-state.js';
import type { TicketBook } from './ticket-book.js';

/**
 * The producers that a decoder with this model fingerprint may know of, each with a ticket and its state; those that are
 * ready first, so that no others take their places when there are too many for a list.
 */
export function producerListFor(options: {
  nodes: readonly NodeEntry[];
  fingerprint: Uint8Array;
  tickets: TicketBook;
  /** Empty: none. */
  renewOrder: string;
  nowMs: number;
}): ProducerList {
  const { nodes, fingerprint, tickets, renewOrder, nowMs } = options;
  const producers = nodes.flatMap((node) => entryOf(node, fingerprint, tickets) ?? []);
  const isReady = ({ state }: ProducerEntry): boolean => state === 'ready';
  const ordered = [...producers.filter(isReady), ...producers.filter((entry) => !isReady(entry))];
  return { coordinatorTimeMs: nowMs, producers: ordered.slice(0, MAX_PRODUCERS), renewOrder };
}

function entryOf(node: NodeEntry, fingerprint: Uint8Array, tickets: TicketBook): ProducerEntry | null {
  const { record, status } = node;
  if (record.role !== 'producer' || status === null || !isHeard(node)) return null;
  if (!Buffer.from(status.model.fingerprint).equals(Buffer.from(fingerprint))) return null;
  if (status.maxPromptTokens < MIN_PROMPT_TOKENS) return null;
  const ticket = tickets.ticketFor({
    producerId: record.nodeId,
    producerModel: status.model.modelDigest,
    maxPromptTokens: status.maxPromptTokens,
  });
  return {
    nodeId: record.nodeId,
    name: record.name,
    addresses: [...record.addresses],
    signingPublicKey: record.signingPublicKey,
    producerModel: status.model.modelDigest,
    state: status.state,
    queueLength: status.queueLength,
    prefillTokensPerSecond: status.prefillTokensPerSecond,
    maxPromptTokens: status.maxPromptTokens,
    backend: status.backend,
    ticket: ticket.bytes,
    ticketExpiresAtMs: ticket.expiresAtMs,
  };
}

/**
 * Decoders send new requests to those that are ready only. The others that are heard and not broken are named so that
 * transfers that run there go on (one may have made an idle producer load its model), and so that a decoder can say why
 * it does not use them.
 */
function isHeard({ state, status }: NodeEntry): boolean {
  switch (state) {
    case 'healthy':
    case 'draining':
    case 'paused':
      return true;
    case 'enrolled':
      return status?.state === 'starting';
    case 'unreachable':
    case 'error':
    case 'revoked':
      return false;
  }
}
