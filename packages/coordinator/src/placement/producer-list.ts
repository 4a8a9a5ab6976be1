import { MAX_PRODUCERS, MIN_PROMPT_TOKENS, type ProducerEntry, type ProducerList } from '@muser/protocol';

import type { NodeEntry, NodeState } from '../nodes/node-state.js';
import type { TicketBook } from './ticket-book.js';

/**
 * Decoders send new requests to those that are ready only. The others are named so that transfers that run there go on, and
 * so that a decoder can say why it does not use them.
 */
const LISTED: ReadonlySet<NodeState> = new Set<NodeState>(['healthy', 'draining', 'paused']);

/** The producers that a decoder with this model fingerprint may know of, each with a ticket and its state. */
export function producerListFor(options: {
  nodes: readonly NodeEntry[];
  fingerprint: Uint8Array;
  tickets: TicketBook;
  nowMs: number;
}): ProducerList {
  const { nodes, fingerprint, tickets, nowMs } = options;
  const producers = nodes.flatMap((node) => entryOf(node, fingerprint, tickets) ?? []);
  return { coordinatorTimeMs: nowMs, producers: producers.slice(0, MAX_PRODUCERS) };
}

function entryOf(node: NodeEntry, fingerprint: Uint8Array, tickets: TicketBook): ProducerEntry | null {
  const { record, state, status } = node;
  if (record.role !== 'producer' || !LISTED.has(state) || status === null) return null;
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
