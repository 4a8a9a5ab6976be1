import {
  checkTicket,
  decodePrefillRequest,
  MAX_CLOCK_SKEW_MS,
  MuserError,
  openTicket,
  type PrefillRequest,
  requestDigestOf,
  type VerifyingKey,
  type WireType,
} from '@muser/protocol';

import type { BackendLimits, BackendModel } from '../backend/backend.js';
import { checkPrompt } from '../backend/check-task.js';

export interface AdmissionRules {
  readonly producerId: string;
  readonly coordinatorKey: VerifyingKey;
  readonly model: BackendModel;
  readonly limits: BackendLimits;
}

/** A request of which everything has been checked that can be checked before it waits. */
export interface AdmittedRequest {
  readonly request: PrefillRequest;
  /** SHA-256 of the request as it came. */
  readonly digest: Uint8Array;
  readonly decoderId: string;
  readonly wireType: WireType;
  /** Unix milliseconds: nothing goes on beyond, so that a node whose revocation nobody could tell ends with its ticket. */
  readonly ticketEndsAtMs: number;
}

/**
 * Checks a request, cheapest and most telling first: its form and protocol version, who vouches for it, the model, then
 * the prompt. Nothing is allocated that outlives a refusal.
 *
 * @throws MuserError MESSAGE_INVALID, MESSAGE_TOO_LARGE, PROTOCOL_VERSION, TICKET_INVALID, TICKET_EXPIRED, CLOCK_SKEW, MODEL_MISMATCH, INVALID_REQUEST,
 * PROMPT_TOO_LONG
 */
export function admit(
  requestBytes: Buffer,
  decoderId: string,
  rules: AdmissionRules,
  nowMs: number = Date.now(),
): AdmittedRequest {
  const request = decodePrefillRequest(requestBytes);
  const ticketEndsAtMs = checkAuthority(request, decoderId, rules, nowMs) + MAX_CLOCK_SKEW_MS;
  if (!Buffer.from(request.fingerprint).equals(rules.model.identity.fingerprint)) {
    throw new MuserError(
      'MODEL_MISMATCH',
      'the request is for a model of another fingerprint than the one loaded here',
    );
  }
  checkPrompt(request.tokens, rules);
  const wireType = request.wireTypes.find((type) => rules.limits.wireTypes.includes(type));
  if (wireType === undefined) {
    throw new MuserError('INVALID_REQUEST', `rows are offered as ${rules.limits.wireTypes.join(', ')} only`);
  }
  return { request, digest: requestDigestOf(requestBytes), decoderId, wireType, ticketEndsAtMs };
}

/** @returns the end of the ticket, by the coordinator's clock */
function checkAuthority(request: PrefillRequest, decoderId: string, rules: AdmissionRules, nowMs: number): number {
  const ticket = openTicket(request.ticket, rules.coordinatorKey);
  checkTicket(ticket, {
    decoderId,
    producerId: rules.producerId,
    fingerprint: rules.model.identity.fingerprint,
    producerModel: rules.model.identity.modelDigest,
    decoderModel: request.decoderModel,
    promptTokens: request.tokens.length,
    nowMs,
    clockSkewMs: MAX_CLOCK_SKEW_MS,
  });
  return ticket.expiresAtMs;
}
