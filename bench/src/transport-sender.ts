// The sending process of the transport benchmark: a producer's end of a verified stream, and a raw TLS socket.
import { createHash } from 'node:crypto';
import type { AddressInfo } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { createServer as createTlsServer, type TLSSocket } from 'node:tls';
import { requestDigestOf, signingKeyFromSeed, TransferSender, type Geometry } from '@muser/protocol';
import {
  addHandoffService,
  createServer,
  hashInline,
  hashOnPool,
  PeerListener,
  type Identity,
  type PrefillCall,
} from '@muser/transport';
import {
  chunksOf,
  makePayload,
  senderOptions,
  type BenchRequest,
  type SenderPorts,
  type SenderSetup,
  type SenderUsage,
} from './transport-scenario.js';
import { Usage } from './usage.js';

const payload = makePayload();
const usage = new Usage();
let prefillStartedNs = 0n;
let lastChunkNs = 0n;

/** Each chunk's shards when it is computed; compute goes on while a link that is slower holds the shards up. */
async function* readyShards(geometry: Geometry, request: BenchRequest) {
  const { tokensPerSecond } = request;
  const startedNs = process.hrtime.bigint();
  prefillStartedNs = startedNs;
  lastChunkNs = startedNs;
  for (const { end, shards } of chunksOf(geometry, request)) {
    if (tokensPerSecond !== null) {
      lastChunkNs = startedNs + BigInt(Math.round((end * 1e9) / tokensPerSecond));
      await delay(Math.max(0, Number(lastChunkNs - process.hrtime.bigint()) / 1e6));
    }
    yield* shards;
  }
}

/** As a producer does it: while a frame waits for the stream, the next payload is hashed. */
async function verifiedStream(identity: Identity, geometry: Geometry, call: PrefillCall): Promise<void> {
  const request = JSON.parse(call.requestBytes.toString()) as BenchRequest;
  const sender = new TransferSender(
    senderOptions(geometry, request.promptTokens, {
      nonce: Buffer.from(request.nonce, 'hex'),
      requestDigest: requestDigestOf(call.requestBytes),
      producerId: identity.nodeId,
      key: identity.signingKey,
    }),
  );
  await call.send(sender.begin());
  const hash = request.hash === 'pool' ? hashOnPool : hashInline;
  let sent: Promise<void> = Promise.resolve();
  for await (const { range, payloadBytes } of readyShards(geometry, request)) {
    const rows = payload.subarray(0, payloadBytes);
    const sha256 = await hash(rows);
    await sent;
    sent = call.send(sender.shard(range, rows, sha256));
  }
  await sent;
  await call.send(sender.seal({ prefillStartUs: 0, prefillEndUs: 1, queueUs: 0, reusedTokens: 0 }));
}

/** The same bytes in the same pieces, and nothing else but their hash where it is asked for. */
async function rawStream(socket: TLSSocket, geometry: Geometry, request: BenchRequest): Promise<void> {
  for (const { payloadBytes } of chunksOf(geometry, request).flatMap(({ shards }) => shards)) {
    const rows = payload.subarray(0, payloadBytes);
    if (request.hash !== 'none') createHash('sha256').update(rows).digest();
    if (!socket.write(rows)) await new Promise((resolve) => socket.once('drain', resolve));
  }
  socket.end();
}

async function listen({ identity: plain, signingSeed, geometry, host }: SenderSetup): Promise<SenderPorts> {
  const identity: Identity = { ...plain, signingKey: signingKeyFromSeed(signingSeed) };
  const server = createServer();
  addHandoffService(server, { authorize: () => {}, prefill: (call) => verifiedStream(identity, geometry, call) });
  const listener = await PeerListener.listen({ identity, host, port: 0, server });

  const raw = createTlsServer({
    key: identity.tlsKeyPem,
    cert: identity.tlsCertificatePem,
    ca: identity.caPem,
    requestCert: true,
    minVersion: 'TLSv1.3',
  });
  raw.on('secureConnection', (socket) => {
    socket.on('error', () => {});
    socket.once('data', (request: Buffer) => {
      void rawStream(socket, geometry, JSON.parse(request.toString()) as BenchRequest);
    });
  });
  await new Promise<void>((resolve) => raw.listen(0, host, resolve));
  return { verifiedPort: listener.address.port, rawPort: (raw.address() as AddressInfo).port };
}

process.once('message', (setup) => {
  process.on('message', (word) => {
    if (word === 'start') usage.start();
    process.send?.(word === 'start' ? {} : ({ ...usage.stop(), prefillStartedNs, lastChunkNs } satisfies SenderUsage));
  });
  void listen(setup as SenderSetup).then((ports) => process.send?.(ports));
});
process.once('disconnect', () => process.exit(0));
