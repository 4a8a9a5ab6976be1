// Tickets: only one that the coordinator has signed opens, whatever bytes come, and one that opens is judged without a fault.
import assert from 'node:assert/strict';
import { Choices, mutated } from '@muser/testing';
import { verifyingKey } from '../src/keys.js';
import { signedBodySchema, ticketSchema, type Ticket } from '../src/messages.js';
import { checkTicket, openTicket, sealTicket, type TicketUse } from '../src/ticket.js';
import { coordinatorKey, producerId, strangerKey } from '../test/support/transfers.js';
import { valueOf } from './support.js';

const NOW_MS = 1_800_000_000_000;
const SKEW_MS = 300_000;
const LIFETIME_MS = 900_000;
const filled = (value: number): Buffer => Buffer.alloc(32, value);
const ticket: Ticket = {
  ticketId: Buffer.alloc(16, 1),
  decoderId: producerId,
  producerId,
  fingerprint: filled(2),
  decoderModel: filled(3),
  producerModel: filled(4),
  maxPromptTokens: 4096,
  issuedAtMs: NOW_MS,
  expiresAtMs: NOW_MS + LIFETIME_MS,
};
const use: TicketUse = {
  decoderId: producerId,
  producerId,
  fingerprint: filled(2),
  producerModel: filled(4),
  decoderModel: filled(3),
  promptTokens: 100,
  nowMs: NOW_MS,
  clockSkewMs: SKEW_MS,
};
const sealed = Buffer.from(sealTicket(ticket, coordinatorKey));
const trusted = verifyingKey(coordinatorKey.publicKey);

export function fuzz(input: Buffer): void {
  const choose = new Choices(input);
  switch (choose.integer(0, 3)) {
    case 0:
      return untrusted(choose.bytes(input.length));
    case 1:
      return untrusted(mutated(choose, sealed));
    case 2: {
      // Well-formed, and signed by somebody else.
      const body = ticketSchema.encode(ticket);
      const signature = choose.pick([
        strangerKey.sign('muser/1/ticket', body),
        coordinatorKey.sign('muser/1/begin', body),
        coordinatorKey.sign('muser/1/ticket', body.subarray(1)),
        choose.bytes(64),
      ]);
      const bytes = valueOf(() => signedBodySchema.encode({ body, signature }));
      return bytes === null ? undefined : untrusted(Buffer.from(bytes.result));
    }
    default:
      return judged(choose);
  }
}

function untrusted(bytes: Buffer): void {
  const opened = valueOf(() => openTicket(bytes, trusted));
  if (opened !== null)
    assert.deepEqual(ticketSchema.encode(opened.result), ticketSchema.encode(ticket), 'a ticket of nobody');
}

function judged(choose: Choices): void {
  const shiftMs = (): number => choose.pick([0, 1, -1, SKEW_MS, -SKEW_MS - 1, LIFETIME_MS, 2 ** 50, -(2 ** 40)]);
  const issuedAtMs = Math.max(0, NOW_MS + shiftMs());
  const other = {
    ...ticket,
    issuedAtMs,
    expiresAtMs: Math.max(0, issuedAtMs + shiftMs()),
    maxPromptTokens: choose.pick([2, 99, 100]),
  };
  const opened = valueOf(() => openTicket(sealTicket(other, coordinatorKey), trusted));
  if (opened === null) return;
  const allowed = valueOf(() => checkTicket(opened.result, use)) !== null;
  const expected =
    other.maxPromptTokens >= use.promptTokens &&
    other.expiresAtMs - other.issuedAtMs <= LIFETIME_MS &&
    other.issuedAtMs - NOW_MS <= SKEW_MS &&
    NOW_MS - other.expiresAtMs <= SKEW_MS;
  assert.equal(allowed, expected, 'judged wrongly');
}

export function seeds(): [string, Buffer][] {
  return [
    ['signed', Buffer.concat([Buffer.from([0]), sealed])],
    ['damaged', Buffer.from([1, 0, 1, 2, 3, 4])],
    ['foreign', Buffer.from([2, 0])],
    ['times', Buffer.from([3, 0, 5, 2])],
  ];
}
