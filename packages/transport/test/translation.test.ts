import { Metadata, status, type ServiceError } from '@grpc/grpc-js';
import { ERROR_CODES, MuserError, type ErrorCode } from '@muser/protocol';
import { describe, expect, it } from 'vitest';
import { boundedText, fromServiceError, toStatus } from '../src/translation.js';

const facts = { target: 'host:1', connected: true, identity: 'unseen' } as const;
const codes = Object.keys(ERROR_CODES) as ErrorCode[];

function serviceError(code: status, details: string, metadata = new Metadata()): ServiceError {
  return Object.assign(new Error(details), { code, details, metadata });
}

describe('errors on their way through gRPC', () => {
  // fault: cause-lost
  it.each(codes)('%s arrives as itself', (code) => {
    const sent = toStatus(new MuserError(code, 'what happened'));
    expect(sent.code).toBe(status[ERROR_CODES[code].grpcStatus]);
    const received = fromServiceError(serviceError(sent.code, sent.details, sent.metadata), facts);
    expect(received).toMatchObject({ code, message: 'what happened', details: { target: 'host:1' } });
  });

  // promise: The text of an unexpected error stays on the machine where it happened.
  it('keeps the text of an unexpected error on the server', () => {
    const sent = toStatus(new Error('the prompt was: secret'));
    expect(JSON.stringify(sent)).not.toContain('secret');
    expect(fromServiceError(serviceError(sent.code, sent.details, sent.metadata), facts).code).toBe('INTERNAL');
  });

  it('believes no code that is not on the list', () => {
    const metadata = new Metadata();
    metadata.set('muser-code', 'toString');
    expect(fromServiceError(serviceError(status.UNAVAILABLE, 'x', metadata), facts).code).toBe('PEER_UNREACHABLE');
  });

  it.each<[status, string, boolean, ErrorCode]>([
    [status.DEADLINE_EXCEEDED, 'Deadline exceeded', true, 'DEADLINE_EXCEEDED'],
    [status.RESOURCE_EXHAUSTED, 'Received message larger than max', true, 'MESSAGE_TOO_LARGE'],
    [status.UNIMPLEMENTED, 'no such method', true, 'PROTOCOL_VERSION'],
    [status.UNAUTHENTICATED, 'who', true, 'UNAUTHENTICATED'],
    [status.PERMISSION_DENIED, 'no', true, 'PERMISSION_DENIED'],
    [status.UNAVAILABLE, 'Connection dropped', true, 'PEER_UNREACHABLE'],
    [status.INTERNAL, 'Received RST_STREAM with code 2', true, 'PEER_UNREACHABLE'],
    [status.CANCELLED, 'Call cancelled', true, 'PEER_UNREACHABLE'],
    [status.UNAVAILABLE, 'connect ECONNREFUSED', false, 'PEER_UNREACHABLE'],
    [status.UNAVAILABLE, 'unable to verify the first certificate', false, 'PEER_IDENTITY'],
  ])('reads status %i (%s, connected: %s) from grpc-js as %s', (code, details, connected, expected) => {
    expect(fromServiceError(serviceError(code, details), { ...facts, connected }).code).toBe(expected);
  });

  it('cuts long texts at a character and survives lone surrogates', () => {
    const long = boundedText('ü'.repeat(2_000));
    expect(Buffer.byteLength(long)).toBeLessThanOrEqual(1_024);
    expect(long).toMatch(/^ü+\.\.\.$/);
    expect(() => encodeURI(boundedText('\ud800 x'))).not.toThrow();
  });
});
