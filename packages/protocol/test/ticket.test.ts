import { describe, expect, it } from 'vitest';
import { nodeIdOf } from '../src/ids.js';
import { verifyingKey } from '../src/keys.js';
import { TICKET_LIFETIME_MS } from '../src/limits.js';
import { signedBodySchema, type Ticket } from '../src/messages.js';
import { checkTicket, openTicket, sealTicket, type TicketUse } from '../src/ticket.js';
import { expectCode } from './support/errors.js';
import { coordinatorKey, decoderKey, fingerprint, producerId, strangerKey } from './support/transfers.js';

const coordinator = verifyingKey(coordinatorKey.publicKey);
const issuedAtMs = 1_800_000_000_000;
const ticket: Ticket = {
  ticketId: Buffer.alloc(16, 1),
  decoderId: nodeIdOf(decoderKey.publicKey),
  producerId,
  fingerprint,
  decoderModel: Buffer.alloc(32, 2),
  producerModel: Buffer.alloc(32, 3),
  maxPromptTokens: 1000,
  issuedAtMs,
  expiresAtMs: issuedAtMs + TICKET_LIFETIME_MS,
};
const use: TicketUse = {
  decoderId: ticket.decoderId,
  producerId,
  fingerprint,
  producerModel: ticket.producerModel,
  decoderModel: ticket.decoderModel,
  promptTokens: 1000,
  nowMs: issuedAtMs + 1000,
  clockSkewMs: 5000,
};

describe('a ticket', () => {
  it('comes back as it was and permits its use', () => {
    const opened = openTicket(sealTicket(ticket, coordinatorKey), coordinator);
    expect(opened).toEqual(ticket);
    checkTicket(opened, use);
  });

  // promise: A ticket with any bit changed is refused.
  it('is not trusted with another signature or any bit changed', async () => {
    await expectCode(() => openTicket(sealTicket(ticket, strangerKey), coordinator), 'TICKET_INVALID');
    const sealed = Buffer.from(sealTicket(ticket, coordinatorKey));
    for (let bit = 0; bit < sealed.length * 8; bit++) {
      const changed = Buffer.from(sealed);
      changed[bit >> 3] = (changed[bit >> 3] ?? 0) ^ (1 << (bit & 7));
      await expectCode(() => openTicket(changed, coordinator), 'TICKET_INVALID');
    }
  });

  it('is not trusted with a signature for another domain or a body of another form', async () => {
    const { body } = signedBodySchema.decode(sealTicket(ticket, coordinatorKey));
    const asBegin = signedBodySchema.encode({ body, signature: coordinatorKey.sign('muser/1/begin', body) });
    await expectCode(() => openTicket(asBegin, coordinator), 'TICKET_INVALID');
    const junk = Buffer.from('junk');
    const signedJunk = signedBodySchema.encode({ body: junk, signature: coordinatorKey.sign('muser/1/ticket', junk) });
    await expectCode(() => openTicket(signedJunk, coordinator), 'TICKET_INVALID');
    await expectCode(() => openTicket(Buffer.alloc(0), coordinator), 'TICKET_INVALID');
  });

  it.each([
    ['TICKET_INVALID', { decoderId: producerId }],
    ['TICKET_INVALID', { producerId: ticket.decoderId }],
    ['TICKET_INVALID', { fingerprint: Buffer.alloc(32) }],
    ['TICKET_INVALID', { producerModel: Buffer.alloc(32) }],
    ['TICKET_INVALID', { decoderModel: Buffer.alloc(32) }],
    ['PROMPT_TOO_LONG', { promptTokens: 1001 }],
    ['TICKET_EXPIRED', { nowMs: ticket.expiresAtMs + 5001 }],
    ['CLOCK_SKEW', { nowMs: issuedAtMs - 5001 }],
  ] as const)('is refused with %s for %o', (code, changes) =>
    expectCode(() => checkTicket(ticket, { ...use, ...changes }), code).then(() => undefined),
  );

  it('is refused with a number of seconds that is more than what is allowed', () => {
    expect(() => checkTicket(ticket, { ...use, nowMs: ticket.expiresAtMs + 5001 })).toThrow('6 s ago, 5 s are allowed');
    expect(() => checkTicket(ticket, { ...use, nowMs: issuedAtMs - 5001 })).toThrow(
      '6 s in the future, 5 s are allowed',
    );
  });

  it('holds for clocks that differ by what is allowed', () => {
    checkTicket(ticket, { ...use, nowMs: ticket.expiresAtMs + 5000 });
    checkTicket(ticket, { ...use, nowMs: issuedAtMs - 5000 });
  });

  // promise: A ticket lives 15 minutes at most.
  it('may not live longer than 15 minutes, nor end before it begins', async () => {
    const long = { ...ticket, expiresAtMs: ticket.expiresAtMs + 1 };
    await expectCode(() => checkTicket(long, use), 'TICKET_INVALID');
    await expectCode(() => sealTicket({ ...ticket, expiresAtMs: issuedAtMs }, coordinatorKey), 'MESSAGE_INVALID');
  });
});
