// The sending process of the transport benchmark: a producer's end of a verified stream, and a raw TLS socket.
import { createHash } from 'node:crypto';
import type { AddressInfo } from 'node:net';
import { createServer as createTlsServer, type TLSSocket } from 'node:tls';
import { requestDigestOf, signingKeyFromSeed, TransferSender } from '@muser/protocol';
import {
  addHandoffService,
  createServer,
  hashInline,
  hashOnPool,
  PeerListener,
  type Identity,
  type PrefillCall,
} from '@muser/transport';
import { PAYLOAD, senderOptions, shardsOf, type BenchRequest, type SenderSetup } from './transport-scenario.js';

/** Verified shards that may be hashed ahead of the one that is being sent. */
const HASHES_AHEAD = 4;

async function verifiedStream(identity: Identity, call: PrefillCall): Promise<void> {
  const { promptTokens, hash, nonce } = JSON.parse(call.requestBytes.toString()) as BenchRequest;
  const sender = new TransferSender(
    senderOptions(promptTokens, {
      nonce: Buffer.from(nonce, 'hex'),
      requestDigest: requestDigestOf(call.requestBytes),
      producerId: identity.nodeId,
      key: identity.signingKey,
    }),
  );
  await call.send(sender.begin());
  const digest = hash === 'pool' ? hashOnPool : hashInline;
  const shards = shardsOf(promptTokens);
  const digests: (Uint8Array | Promise<Uint8Array>)[] = [];
  for (const [index, { range }] of shards.entries()) {
    for (const ahead of shards.slice(digests.length, index + (hash === 'pool' ? HASHES_AHEAD : 1))) {
      digests.push(digest(PAYLOAD.subarray(0, ahead.payloadBytes)));
    }
    const payload = PAYLOAD.subarray(0, shards[index]?.payloadBytes);
    await call.send(sender.shard(range, payload, await (digests[index] as Promise<Uint8Array>)));
  }
  await call.send(sender.seal({ prefillStartUs: 0, prefillEndUs: 1, queueUs: 0, reusedTokens: 0 }));
}

/** The same bytes in the same pieces, each hashed, and nothing else. */
async function rawStream(socket: TLSSocket, promptTokens: number): Promise<void> {
  for (const { payloadBytes } of shardsOf(promptTokens)) {
    const payload = PAYLOAD.subarray(0, payloadBytes);
    createHash('sha256').update(payload).digest();
    if (!socket.write(payload)) await new Promise((resolve) => socket.once('drain', resolve));
  }
  socket.end();
}

async function main({ identity: plain, signingSeed }: SenderSetup): Promise<void> {
  const identity: Identity = { ...plain, signingKey: signingKeyFromSeed(signingSeed) };
  const server = createServer();
  addHandoffService(server, { authorize: () => {}, prefill: (call) => verifiedStream(identity, call) });
  const listener = await PeerListener.listen({ identity, host: '127.0.0.1', port: 0, server });

  const raw = createTlsServer({
    key: identity.tlsKeyPem,
    cert: identity.tlsCertificatePem,
    ca: identity.caPem,
    requestCert: true,
    minVersion: 'TLSv1.3',
  });
  raw.on('secureConnection', (socket) => {
    socket.on('error', () => {});
    socket.once('data', (request: Buffer) => void rawStream(socket, request.readUInt32LE(0)));
  });
  await new Promise<void>((resolve) => raw.listen(0, '127.0.0.1', resolve));
  process.send?.({ verifiedPort: listener.address.port, rawPort: (raw.address() as AddressInfo).port });
}

process.once('message', (setup) => {
  process.on('message', () => process.send?.(process.cpuUsage()));
  void main(setup as SenderSetup);
});
process.once('disconnect', () => process.exit(0));
