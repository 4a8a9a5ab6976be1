import { fork, type ChildProcess } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import { fileURLToPath } from 'node:url';
import { connect as connectTls } from 'node:tls';
import { requestDigestOf, TransferReceiver, verifyingKey, type TransferEvent } from '@muser/protocol';
import { TestAuthority, type TestIdentity } from '@muser/testing';
import { hashInline, hashOnPool, hashPayload, PeerClient } from '@muser/transport';
import { figure, median } from './statistics.js';
import { FINGERPRINT, GEOMETRY, payloadBytesOf, type BenchRequest, type SenderSetup } from './transport-scenario.js';

const PROMPT_TOKENS = 8_192;
const ROUNDS = 5;
/** Payloads that may be hashed while later ones arrive. */
const HASHES_AHEAD = 4;

interface Ports {
  verifiedPort: number;
  rawPort: number;
}

interface Bench {
  sender: ChildProcess;
  ports: Ports;
  client: PeerClient;
  decoder: TestIdentity;
  producer: TestIdentity;
}

/**
 * A verified stream (TransferSender, gRPC over mutual TLS, TransferReceiver) against a raw TLS 1.3 socket whose two ends hash
 * the same bytes. Each way has two processes, the rounds take turns, and the ratio is that of the medians.
 */
export async function transportBenchmark(): Promise<object> {
  const authority = await TestAuthority.create();
  const producer = await authority.identity('producer');
  const decoder = await authority.identity('decoder');
  const sender = fork(fileURLToPath(new URL('./transport-sender.js', import.meta.url)), { serialization: 'advanced' });
  const ports = await start(sender, producer);
  const expect = { role: 'producer', nodeId: producer.nodeId } as const;
  const client = PeerClient.connect({ identity: decoder, target: `127.0.0.1:${ports.verifiedPort}`, expect });
  try {
    return await measure({ sender, ports, client, decoder, producer });
  } finally {
    client.close();
    sender.disconnect();
  }
}

function start(sender: ChildProcess, producer: TestIdentity): Promise<Ports> {
  const { signingKey: _, signingSeed, ...identity } = producer;
  return new Promise((resolve, reject) => {
    sender.once('message', (ports) => resolve(ports as Ports));
    sender.once('exit', (code) => reject(new Error(`the sending process ended with ${code}`)));
    sender.send({ identity, signingSeed } satisfies SenderSetup);
  });
}

const WAYS = ['raw', 'inline', 'pool'] as const;
type Way = (typeof WAYS)[number];

/** One round of one way. */
interface Cost {
  seconds: number;
  /** Processor time of all threads. */
  senderCpuSeconds: number;
  receiverCpuSeconds: number;
}

async function measure(bench: Bench): Promise<object> {
  const costs: Record<Way, Cost[]> = { raw: [], inline: [], pool: [] };
  // Round 0 warms both ends up and does not count.
  for (let round = 0; round <= ROUNDS; round += 1) {
    for (const way of WAYS) {
      const cost = await costOf(bench, () => (way === 'raw' ? rawStream(bench) : verifiedStream(bench, way)));
      if (round > 0) costs[way].push(cost);
    }
  }
  const payloadBytes = payloadBytesOf(PROMPT_TOKENS);
  const middle = (way: Way, of: keyof Cost) => median(costs[way].map((cost) => cost[of]));
  const ratio = (way: Way) => figure(middle('raw', 'seconds') / middle(way, 'seconds'));
  const hashing = hashPayload === hashOnPool ? 'pool' : 'inline';
  return {
    payloadBytes,
    rounds: ROUNDS,
    ways: WAYS.map((way) => ({
      way,
      gigabitPerSecond: figure((payloadBytes * 8) / 1e9 / middle(way, 'seconds')),
      ratioToRaw: ratio(way),
      senderCpuSecondsPerGigabyte: figure((middle(way, 'senderCpuSeconds') * 1e9) / payloadBytes),
      receiverCpuSecondsPerGigabyte: figure((middle(way, 'receiverCpuSeconds') * 1e9) / payloadBytes),
    })),
    hashing,
    verifiedAgainstRaw: ratio(hashing),
    goal: 0.85,
  };
}

async function costOf({ sender }: Bench, work: () => Promise<void>): Promise<Cost> {
  const senderBefore = await cpuOf(sender);
  const receiverBefore = cpuSeconds(process.cpuUsage());
  const started = performance.now();
  await work();
  return {
    seconds: (performance.now() - started) / 1000,
    receiverCpuSeconds: cpuSeconds(process.cpuUsage()) - receiverBefore,
    senderCpuSeconds: (await cpuOf(sender)) - senderBefore,
  };
}

function cpuOf(sender: ChildProcess): Promise<number> {
  return new Promise((resolve) => {
    sender.once('message', (usage) => resolve(cpuSeconds(usage as NodeJS.CpuUsage)));
    sender.send('cpu');
  });
}

const cpuSeconds = ({ user, system }: NodeJS.CpuUsage): number => (user + system) / 1e6;

async function verifiedStream({ client, producer }: Bench, hash: BenchRequest['hash']): Promise<void> {
  const nonce = randomBytes(16);
  const bench: BenchRequest = { promptTokens: PROMPT_TOKENS, hash, nonce: nonce.toString('hex') };
  const request = Buffer.from(JSON.stringify(bench));
  const receiver = new TransferReceiver({
    nonce,
    requestDigest: requestDigestOf(request),
    expect: {
      producerId: producer.nodeId,
      producerKey: verifyingKey(producer.signingKey.publicKey),
      fingerprint: FINGERPRINT,
      geometry: GEOMETRY,
      wireTypes: ['f16'],
      firstToken: 0,
      endToken: PROMPT_TOKENS - 1,
    },
    hash: hash === 'pool' ? hashOnPool : hashInline,
  });
  const pending: Promise<TransferEvent>[] = [];
  for await (const message of client.prefill(request, { idleTimeoutMs: 60_000 })) {
    pending.push(receiver.accept(message));
    if (pending.length >= HASHES_AHEAD) await pending.shift();
  }
  await Promise.all(pending);
  receiver.end();
}

function rawStream({ ports, decoder }: Bench): Promise<void> {
  return new Promise((resolve, reject) => {
    const hash = createHash('sha256');
    const socket = connectTls({
      port: ports.rawPort,
      host: '127.0.0.1',
      key: decoder.tlsKeyPem,
      cert: decoder.tlsCertificatePem,
      ca: decoder.caPem,
      checkServerIdentity: () => undefined,
    });
    const request = Buffer.alloc(4);
    request.writeUInt32LE(PROMPT_TOKENS);
    socket.once('secureConnect', () => socket.write(request));
    let bytes = 0;
    socket.on('data', (chunk: Buffer) => {
      hash.update(chunk);
      bytes += chunk.length;
    });
    socket.once('error', reject);
    socket.once('end', () => {
      hash.digest();
      socket.destroy();
      const expected = payloadBytesOf(PROMPT_TOKENS);
      if (bytes === expected) resolve();
      else reject(new Error(`the raw stream ended after ${bytes} of ${expected} bytes`));
    });
  });
}
