import { describe, expect, it } from 'vitest';
import type { PrefillRequest } from '../src/messages.js';
import { decodePrefillRequest, encodePrefillRequest, requestDigestOf, tokensDigest } from '../src/request.js';
import {
  decodeCertificateOrder,
  decodeCertificateRequest,
  decodeIssuedCertificate,
  decodeRevokedNodes,
  decodeSetPausedRequest,
  decodeWatchNodeRequest,
  decodeWatchProducersRequest,
} from '../src/codec.js';
import { expectCode } from './support/errors.js';
import { fingerprint, nonce, sha256 } from './support/transfers.js';
import { protobufjs, toProtobufjs } from './support/proto.js';

const tokens = Uint32Array.from([1, 70_000, 3, 4, 0xffffffff]);
const request: PrefillRequest = {
  protocolVersion: 1,
  nonce,
  ticket: Buffer.from('ticket'),
  fingerprint,
  decoderModel: Buffer.alloc(32, 8),
  tokens,
  heldTokens: 0,
  heldDigest: new Uint8Array(0),
  wireTypes: ['bf16', 'f16'],
  deadlineMs: 60_000,
  chunkTokens: 512,
};
const held = { heldTokens: 3, heldDigest: tokensDigest(tokens, 3) };

describe('PrefillRequest', () => {
  it('comes back as it was', () => {
    for (const value of [request, { ...request, ...held }]) {
      const decoded = decodePrefillRequest(encodePrefillRequest(value));
      expect(decoded.tokens).toEqual(tokens);
      expect(decoded).toMatchObject({ heldTokens: value.heldTokens, wireTypes: ['bf16', 'f16'], deadlineMs: 60_000 });
    }
  });

  it('has tokens that stay when the message is overwritten', () => {
    const bytes = encodePrefillRequest(request);
    const decoded = decodePrefillRequest(bytes);
    bytes.fill(0);
    expect(decoded.tokens).toEqual(tokens);
  });

  it('is refused when what the decoder holds does not fit', async () => {
    const wrong: Partial<PrefillRequest>[] = [
      { heldTokens: 3 },
      { ...held, heldTokens: 2 },
      { heldDigest: held.heldDigest },
      { heldTokens: 4, heldDigest: tokensDigest(tokens, 4) },
      { heldTokens: 5, heldDigest: tokensDigest(tokens, 5) },
      { heldTokens: 3, heldDigest: held.heldDigest.subarray(1) },
    ];
    for (const changes of wrong) {
      const value = { ...request, ...changes };
      await expectCode(() => encodePrefillRequest(value), 'MESSAGE_INVALID');
      const sent = protobufjs('PrefillRequest').serialize(toProtobufjs('PrefillRequest', value));
      await expectCode(() => decodePrefillRequest(sent), 'MESSAGE_INVALID');
    }
  });

  it('of one token has nothing to hand over', () =>
    expectCode(() => encodePrefillRequest({ ...request, tokens: tokens.subarray(0, 1) }), 'MESSAGE_INVALID').then(
      () => undefined,
    ));

  it('above the limit of tokens is PROMPT_TOO_LONG', async () => {
    const longest = new Uint32Array(2 ** 17);
    expect(decodePrefillRequest(encodePrefillRequest({ ...request, tokens: longest })).tokens).toHaveLength(2 ** 17);
    await expectCode(
      () => encodePrefillRequest({ ...request, tokens: new Uint32Array(2 ** 17 + 1) }),
      'PROMPT_TOO_LONG',
    );
  });

  it.each([0, 2, 77])('of version %i is PROTOCOL_VERSION, whatever else is in it', async (version) => {
    const value = { ...toProtobufjs('PrefillRequest', request), protocolVersion: version };
    const sent = protobufjs('PrefillRequest').serialize(value);
    await expectCode(() => decodePrefillRequest(sent), 'PROTOCOL_VERSION');
    const later = Buffer.concat([Buffer.from([8, version]), Buffer.from('aa060568656c6c6f', 'hex')]);
    for (const decode of [
      decodePrefillRequest,
      decodeCertificateOrder,
      decodeCertificateRequest,
      decodeIssuedCertificate,
      decodeRevokedNodes,
      decodeSetPausedRequest,
      decodeWatchNodeRequest,
      decodeWatchProducersRequest,
    ]) {
      const error = await expectCode(() => decode(later), 'PROTOCOL_VERSION');
      expect(error.details).toEqual({ peerVersion: version, ownVersion: 1 });
    }
  });

  it('has the digest of its bytes and of its tokens', () => {
    const bytes = encodePrefillRequest(request);
    expect(requestDigestOf(bytes)).toEqual(sha256(bytes));
    expect(tokensDigest(tokens, 2)).toEqual(sha256(Buffer.from('0100000070110100', 'hex')));
  });
});
