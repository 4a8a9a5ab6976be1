import {
  MAX_PRODUCERS,
  MIN_PROMPT_TOKENS,
  type NodeStatus,
  type ProducerEntry,
  type ProducerList,
  type UnavailableProducer,
  type UnavailableReason,
} from '@muser/protocol';

import type { NodeEntry } from '../nodes/node-state.js';
import type { NodeRecord } from '../registry/store.js';
import type { TicketBook } from './ticket-book.js';

/**
 * Every producer that is enrolled, as a decoder with this model fingerprint may know of it: each that is heard with a ticket
 * and its state, those that are ready first, and of the others why it gets no requests.
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
  const producers: ProducerEntry[] = [];
  const unavailable: UnavailableProducer[] = [];
  for (const node of nodes) {
    if (node.record.role !== 'producer' || node.state === 'revoked') continue;
    const { nodeId, name } = node.record;
    const found = statusFor(node, fingerprint);
    if (typeof found === 'string') unavailable.push({ nodeId, name, reason: found });
    else producers.push(entryOf(node.record, found, tickets));
  }
  const isReady = ({ state }: ProducerEntry): boolean => state === 'ready';
  const ordered = [...producers.filter(isReady), ...producers.filter((entry) => !isReady(entry))];
  return {
    coordinatorTimeMs: nowMs,
    producers: ordered.slice(0, MAX_PRODUCERS),
    renewOrder,
    unavailable: unavailable.slice(0, MAX_PRODUCERS),
  };
}

function entryOf(record: NodeRecord, status: NodeStatus, tickets: TicketBook): ProducerEntry {
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
 * What a producer says of itself, if a decoder with this model may know of it; else why not. Decoders send requests to those
 * that are ready only; others that are heard and not broken have a state, so that a decoder can say why it does not use them.
 */
function statusFor({ state, status }: NodeEntry, fingerprint: Uint8Array): NodeStatus | UnavailableReason {
  if (state === 'unreachable') return 'unreachable';
  if (state === 'error' || state === 'revoked') return 'error';
  if (status === null || (state === 'enrolled' && status.state !== 'starting')) return 'not_heard';
  if (!Buffer.from(status.model.fingerprint).equals(Buffer.from(fingerprint))) return 'other_model';
  return status.maxPromptTokens < MIN_PROMPT_TOKENS ? 'error' : status;
}
