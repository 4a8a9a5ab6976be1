import { Metadata, status as GrpcStatus, type ServiceError, type StatusObject } from '@grpc/grpc-js';
import {
  ERROR_CODES,
  isErrorCode,
  MAX_ERROR_MESSAGE_BYTES,
  MuserError,
  withoutForeignText,
  type ErrorCode,
} from '@muser/protocol';

/** The one place where gRPC statuses and MuserErrors become each other. */

/** Trailer with the exact code; the gRPC status beside it is for foreign tools. */
const CODE_TRAILER = 'muser-code';

/**
 * What a server answers. Anything but a MuserError is an internal error whose text stays on this side: it may quote data.
 */
export function toStatus(error: unknown): StatusObject {
  const known = withoutForeignText(error);
  const metadata = new Metadata();
  metadata.set(CODE_TRAILER, known.code);
  return {
    code: GrpcStatus[ERROR_CODES[known.code].grpcStatus],
    details: boundedText(known.message),
    metadata,
  };
}

export interface CallFacts {
  /** "host:port" as it was dialled. */
  target: string;
  /** The connection was there when the call ended. */
  connected: boolean;
  /** What was found in the server's certificate: nothing as long as no handshake got that far. */
  identity: MuserError | 'approved' | 'unseen';
}

/** What a client reports. */
export function fromServiceError(error: ServiceError, facts: CallFacts): MuserError {
  const sent = error.metadata.get(CODE_TRAILER)[0];
  const details = { target: facts.target };
  if (isErrorCode(sent)) {
    return new MuserError(sent, boundedText(error.details), { cause: error, details });
  }
  if (facts.identity instanceof MuserError && !facts.connected) return facts.identity;
  const { code, message } = withoutCode(error, facts);
  return new MuserError(code, message, { cause: error, details });
}

/** The call ended by something that no handler of ours sent: the connection, grpc-js itself, or a foreign server. */
function withoutCode(
  error: ServiceError,
  { target, connected, identity }: CallFacts,
): { code: ErrorCode; message: string } {
  const text = boundedText(plainReason(error.details));
  switch (error.code) {
    case GrpcStatus.DEADLINE_EXCEEDED:
      return { code: 'DEADLINE_EXCEEDED', message: `${target} did not finish before the deadline` };
    case GrpcStatus.RESOURCE_EXHAUSTED:
      return { code: 'MESSAGE_TOO_LARGE', message: `a message from or to ${target} is over the limit: ${text}` };
    case GrpcStatus.UNIMPLEMENTED:
      return { code: 'PROTOCOL_VERSION', message: `${target} does not offer this call: ${text}` };
    case GrpcStatus.UNAUTHENTICATED:
      return { code: 'UNAUTHENTICATED', message: `${target} does not know this node: ${text}` };
    case GrpcStatus.PERMISSION_DENIED:
      return { code: 'PERMISSION_DENIED', message: `${target} refused: ${text}` };
    default:
      return connected
        ? { code: 'PEER_UNREACHABLE', message: `the connection to ${target} broke: ${text}` }
        : connectionFailure(target, identity, text);
  }
}

function connectionFailure(
  target: string,
  identity: CallFacts['identity'],
  text: string,
): { code: ErrorCode; message: string } {
  const clock = `by this machine's clock (${new Date().toISOString()})`;
  if (/certificate is not yet valid/i.test(text)) {
    const message = `the certificate of ${target} is not yet valid ${clock}: set the clocks of both machines by NTP`;
    return { code: 'CLOCK_SKEW', message };
  }
  if (/certificate has expired/i.test(text)) {
    const message = `the certificate of ${target} has ended ${clock}: set the clock, or enroll that node again`;
    return { code: 'CERTIFICATE_INVALID', message };
  }
  if (isCertificateTrouble(text)) {
    return { code: 'PEER_IDENTITY', message: `no trusted connection to ${target}: ${text}` };
  }
  // With TLS 1.3 a server that refuses the client's certificate does so after the client's side of the handshake is done.
  const hint =
    identity === 'approved' && !/\bE[A-Z]{5,}\b/.test(text)
      ? ' (it closes the connection: is this node enrolled there, its certificate valid, and do both clocks agree?)'
      : '';
  return { code: 'PEER_UNREACHABLE', message: `${target} cannot be reached${hint}: ${text}` };
}

/**
 * grpc-js reports a failed handshake as text only. OpenSSL's own wording for a certificate that one of the two sides refuses;
 * an unknown wording is reported as PEER_UNREACHABLE, with the text.
 */
function isCertificateTrouble(text: string): boolean {
  return /certificate|unable to get (local )?issuer|alert unknown ca|alert access denied/i.test(text);
}

/** The first line, without the place in OpenSSL's source and the channel's own note on how it looked the address up. */
function plainReason(details: string): string {
  const [line = ''] = details.split('\n');
  return line
    .replace(/\s*Resolution note:.*$/, '')
    .replace(/:(?:\.\.\/)*deps\/openssl\/\S+/, '')
    .trim();
}

/** At most MAX_ERROR_MESSAGE_BYTES of valid UTF-8: grpc-js cannot encode lone surrogates, and trailers have a size limit. */
export function boundedText(text: string): string {
  const bytes = Buffer.from(text, 'utf8');
  if (bytes.length <= MAX_ERROR_MESSAGE_BYTES) return bytes.toString('utf8');
  const decoder = new TextDecoder('utf-8');
  return `${decoder.decode(bytes.subarray(0, MAX_ERROR_MESSAGE_BYTES - 8), { stream: true })}...`;
}
