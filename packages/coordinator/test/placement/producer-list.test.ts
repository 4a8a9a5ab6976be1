import { generateSigningKey, MAX_PRODUCERS, signingKeyFromSeed, type NodeStatus } from '@muser/protocol';
import { systemClock } from '@muser/service-kit';
import { expect, it } from 'vitest';

import type { NodeEntry, NodeState } from '../../src/nodes/node-state.js';
import { producerListFor } from '../../src/placement/producer-list.js';
import { TicketBook } from '../../src/placement/ticket-book.js';
import { digest, statusOf } from '../support/producer.js';

const key = signingKeyFromSeed(generateSigningKey().seed);
const model = { fingerprint: digest('fingerprint'), modelDigest: digest('decoder weights'), name: 'muse-nano' };
const tickets = new TicketBook({ decoderId: `n${'d'.repeat(26)}`, model, key, clock: systemClock });

const producer = (number: number, state: NodeState, told: NodeStatus['state']): NodeEntry => {
  // Ids have letters and the digits 2 to 7.
  const nodeId = `n${number.toString(2).replaceAll('0', 'a').replaceAll('1', 'b').padStart(26, 'a')}`;
  return {
    record: {
      nodeId,
      name: `${state} ${number}`,
      role: 'producer',
      addresses: ['127.0.0.1:1'],
      signingPublicKey: key.publicKey,
      enrolledAtMs: number,
      certificateExpiresAtMs: Number.MAX_SAFE_INTEGER,
      revokedAtMs: null,
    },
    state,
    reason: null,
    sinceMs: 0,
    lastSeenMs: 0,
    status: statusOf(nodeId, { state: told }),
  };
};

it('names every producer that is ready before any that is not, and drops the last when there are too many', () => {
  const others = Array.from({ length: MAX_PRODUCERS }, (_, number) =>
    number % 2 === 0 ? producer(number, 'paused', 'paused') : producer(number, 'draining', 'draining'),
  );
  const ready = [1, 2].map((number) => producer(MAX_PRODUCERS + number, 'healthy', 'ready'));
  const nodes = [...others, ...ready];
  const { producers } = producerListFor({ nodes, fingerprint: model.fingerprint, tickets, renewOrder: '', nowMs: 0 });
  const kept = [...ready, ...others].slice(0, MAX_PRODUCERS);
  expect(producers.map(({ nodeId }) => nodeId)).toEqual(kept.map(({ record }) => record.nodeId));
});
