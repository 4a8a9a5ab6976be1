import { toMuserError, MuserError } from './errors.js';
import { TICKET_LIFETIME_MS } from './limits.js';
import type { SigningKey, VerifyingKey } from './keys.js';
import { signedBodySchema, ticketSchema, type Ticket } from './messages.js';
import { asBuffer } from './wire/bytes.js';

/** Encodes and signs a ticket; the result goes into ProducerEntry and PrefillRequest as it is. */
export function sealTicket(ticket: Ticket, coordinatorKey: SigningKey): Uint8Array {
  const body = ticketSchema.encode(ticket);
  return signedBodySchema.encode({ body, signature: coordinatorKey.sign('muser/1/ticket', body) });
}

/**
 * The content of a ticket, once its signature holds. Whether it fits the request is checkTicket's to say.
 * @throws MuserError TICKET_INVALID
 */
export function openTicket(bytes: Uint8Array, coordinatorPublic: VerifyingKey): Ticket {
  try {
    const { body, signature } = signedBodySchema.decode(bytes);
    coordinatorPublic.verify('muser/1/ticket', [body], signature);
    return ticketSchema.decode(body);
  } catch (thrown) {
    const error = toMuserError(thrown, 'TICKET_INVALID');
    throw new MuserError('TICKET_INVALID', `the placement ticket cannot be trusted: ${error.message}`, {
      cause: thrown,
    });
  }
}

export interface TicketUse {
  /** The TLS peer. */
  readonly decoderId: string;
  /** The producer itself. */
  readonly producerId: string;
  readonly fingerprint: Uint8Array;
  readonly producerModel: Uint8Array;
  /** The decoder's model as in the request. */
  readonly decoderModel?: Uint8Array;
  readonly promptTokens: number;
  readonly nowMs: number;
  /** Difference of clocks that is forgiven at both ends of the ticket's life. */
  readonly clockSkewMs: number;
}

/**
 * Whether a ticket permits this request at this time.
 * @throws MuserError TICKET_INVALID (another decoder, producer or pair of models, or a life that is too long),
 * CLOCK_SKEW (it begins in the future), TICKET_EXPIRED, PROMPT_TOO_LONG
 */
export function checkTicket(ticket: Ticket, use: TicketUse): void {
  const refuse = (what: string): never => {
    throw new MuserError('TICKET_INVALID', `the placement ticket is for another ${what}`, { details: { field: what } });
  };
  const same = (a: Uint8Array, b: Uint8Array): boolean => asBuffer(a).equals(b);
  if (ticket.decoderId !== use.decoderId) refuse('decoder');
  if (ticket.producerId !== use.producerId) refuse('producer');
  if (!same(ticket.fingerprint, use.fingerprint)) refuse('model fingerprint');
  if (!same(ticket.producerModel, use.producerModel)) refuse('producer model');
  if (use.decoderModel !== undefined && !same(ticket.decoderModel, use.decoderModel)) refuse('decoder model');
  checkTimes(ticket, use);
  if (use.promptTokens > ticket.maxPromptTokens) {
    throw new MuserError(
      'PROMPT_TOO_LONG',
      `the prompt has ${use.promptTokens} tokens, the ticket allows ${ticket.maxPromptTokens}`,
      { details: { promptTokens: use.promptTokens, limit: ticket.maxPromptTokens } },
    );
  }
}

function checkTimes(ticket: Ticket, { nowMs, clockSkewMs }: TicketUse): void {
  const lifetimeMs = ticket.expiresAtMs - ticket.issuedAtMs;
  if (lifetimeMs > TICKET_LIFETIME_MS) {
    throw new MuserError('TICKET_INVALID', `the ticket lives ${lifetimeMs} ms, the limit is ${TICKET_LIFETIME_MS}`);
  }
  const earlyMs = ticket.issuedAtMs - nowMs;
  if (earlyMs > clockSkewMs) {
    const seconds = Math.ceil(earlyMs / 1_000);
    const message = `the ticket begins ${seconds} s in the future, ${clockSkewMs / 1_000} s are allowed: this clock is behind the coordinator's, set it by NTP`;
    throw new MuserError('CLOCK_SKEW', message, { details: { skewMs: earlyMs, limit: clockSkewMs } });
  }
  const lateMs = nowMs - ticket.expiresAtMs;
  if (lateMs > clockSkewMs) {
    const seconds = Math.ceil(lateMs / 1_000);
    const message = `the ticket ended ${seconds} s ago, ${clockSkewMs / 1_000} s are allowed: the coordinator has been away, or this clock is ahead of its`;
    throw new MuserError('TICKET_EXPIRED', message, { details: { lateMs, limit: clockSkewMs } });
  }
}
