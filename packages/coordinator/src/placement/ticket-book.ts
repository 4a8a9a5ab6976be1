import { randomBytes } from 'node:crypto';

import { TICKET_ID_BYTES, TICKET_LIFETIME_MS, sealTicket, type ModelIdentity, type SigningKey } from '@muser/protocol';
import type { Clock } from '@muser/service-kit';

/** Renewed at a third of its life, so that a decoder can do without the coordinator for the other two thirds. */
export const TICKET_RENEWAL_MS = TICKET_LIFETIME_MS / 3;

export interface TicketSubject {
  producerId: string;
  /** SHA-256 of the producer's weights, 32 bytes. */
  producerModel: Uint8Array;
  maxPromptTokens: number;
}

export interface IssuedTicket {
  /** As it goes over the wire. */
  bytes: Uint8Array;
  expiresAtMs: number;
}

interface Page extends IssuedTicket {
  subject: TicketSubject;
  issuedAtMs: number;
}

/** The tickets of one decoder with one model: signed once, handed out again until they are to be renewed. */
export class TicketBook {
  readonly #decoderId: string;
  readonly #model: ModelIdentity;
  readonly #key: SigningKey;
  readonly #clock: Clock;
  readonly #pages = new Map<string, Page>();

  constructor(options: { decoderId: string; model: ModelIdentity; key: SigningKey; clock: Clock }) {
    this.#decoderId = options.decoderId;
    this.#model = options.model;
    this.#key = options.key;
    this.#clock = options.clock;
  }

  ticketFor(subject: TicketSubject): IssuedTicket {
    const nowMs = this.#clock.now();
    const known = this.#pages.get(subject.producerId);
    if (known !== undefined && isFresh(known, nowMs) && isSameSubject(known.subject, subject)) return known;
    const page = this.#issue(subject, nowMs);
    this.#pages.set(subject.producerId, page);
    return page;
  }

  #issue(subject: TicketSubject, nowMs: number): Page {
    const expiresAtMs = nowMs + TICKET_LIFETIME_MS;
    const ticket = {
      ...subject,
      ticketId: randomBytes(TICKET_ID_BYTES),
      decoderId: this.#decoderId,
      fingerprint: this.#model.fingerprint,
      decoderModel: this.#model.modelDigest,
      issuedAtMs: nowMs,
      expiresAtMs,
    };
    return { subject, bytes: sealTicket(ticket, this.#key), issuedAtMs: nowMs, expiresAtMs };
  }
}

/** The clock may also have been set back, below the time of issue. */
function isFresh({ issuedAtMs }: Page, nowMs: number): boolean {
  const ageMs = nowMs - issuedAtMs;
  return ageMs >= 0 && ageMs < TICKET_RENEWAL_MS;
}

function isSameSubject(one: TicketSubject, other: TicketSubject): boolean {
  return (
    one.maxPromptTokens === other.maxPromptTokens &&
    Buffer.from(one.producerModel).equals(Buffer.from(other.producerModel))
  );
}
