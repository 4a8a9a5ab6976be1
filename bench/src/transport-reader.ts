import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { connect as connectTls, type TLSSocket } from 'node:tls';
import { chunkBytesOf, requestDigestOf, TransferReceiver, verifyingKey, type TransferEvent } from '@muser/protocol';
import type { Engine, KvStage, Sequence } from '@muser/metal';
import type { TestIdentity } from '@muser/testing';
import { hashInline, hashOnPool, PeerClient } from '@muser/transport';
import { FINGERPRINT, payloadBytesOf, chunksOf, type BenchRequest, type SenderPorts } from './transport-scenario.js';
import type { Geometry } from '@muser/protocol';

/** As a decoder: payloads that may be hashed while earlier ones are handled, bytes of chunks that wait for the cache. */
const HASHES_AHEAD = 4;
const STAGED_BYTES = 512 << 20;
const IDLE_LIMIT_MS = 60_000;

export type Wanted = Omit<BenchRequest, 'nonce'>;

export interface ReaderParts {
  host: string;
  ports: SenderPorts;
  decoder: TestIdentity;
  producer: TestIdentity;
  geometry: Geometry;
  engine: Engine;
}

/** The receiving end: verifies as a decoder does, and installs into a real engine's cache. */
export class Reader {
  readonly #client: PeerClient;

  constructor(private readonly parts: ReaderParts) {
    const { host, ports, decoder, producer } = parts;
    const expect = { role: 'producer', nodeId: producer.nodeId } as const;
    this.#client = PeerClient.connect({ identity: decoder, target: `${host}:${ports.verifiedPort}`, expect });
  }

  close(): void {
    this.#client.close();
  }

  /** Resolves when every row is verified. */
  async verify(wanted: Wanted): Promise<void> {
    await this.#receive(wanted, () => Promise.resolve());
  }

  /** Resolves when every row is verified and lies in the sequence's cells. */
  async install(wanted: Wanted, sequence: Sequence): Promise<void> {
    const installer = new Installer(sequence, this.parts.geometry);
    await this.#receive(wanted, (event) => installer.take(event));
    await installer.finished();
  }

  /** A TLS socket for one raw stream; the verified one's connection is there before it is timed too. */
  async connectRaw(): Promise<TLSSocket> {
    const { host, ports, decoder } = this.parts;
    const socket = connectTls({
      port: ports.rawPort,
      host,
      key: decoder.tlsKeyPem,
      cert: decoder.tlsCertificatePem,
      ca: decoder.caPem,
      checkServerIdentity: () => undefined,
    });
    await once(socket, 'secureConnect');
    return socket;
  }

  /** The raw stream: the same bytes, hashed when that is asked for. */
  raw(wanted: Wanted, socket: TLSSocket): Promise<void> {
    const hash = wanted.hash === 'none' ? null : createHash('sha256');
    const expected = payloadBytesOf(chunksOf(this.parts.geometry, wanted));
    return new Promise((resolve, reject) => {
      let bytes = 0;
      socket.on('data', (piece: Buffer) => {
        hash?.update(piece);
        bytes += piece.length;
      });
      socket.once('error', reject);
      socket.once('end', () => {
        hash?.digest();
        socket.destroy();
        if (bytes === expected) resolve();
        else reject(new Error(`the raw stream ended after ${bytes} of ${expected} bytes`));
      });
      socket.write(JSON.stringify({ ...wanted, nonce: '' }));
    });
  }

  /** Events are handled one after another while the payloads of the next ones are hashed already, as a decoder does. */
  async #receive(wanted: Wanted, handle: (event: TransferEvent) => Promise<void>): Promise<void> {
    const nonce = randomBytes(16);
    const request = Buffer.from(JSON.stringify({ ...wanted, nonce: nonce.toString('hex') } satisfies BenchRequest));
    const { producer, geometry } = this.parts;
    const receiver = new TransferReceiver({
      nonce,
      requestDigest: requestDigestOf(request),
      expect: {
        producerId: producer.nodeId,
        producerKey: verifyingKey(producer.signingKey.publicKey),
        fingerprint: FINGERPRINT,
        geometry,
        wireTypes: ['f16'],
        firstToken: 0,
        endToken: wanted.promptTokens - 1,
      },
      hash: wanted.hash === 'pool' ? hashOnPool : hashInline,
    });
    const ahead: Promise<void>[] = [];
    let last = Promise.resolve();
    for await (const message of this.#client.prefill(request, { idleTimeoutMs: IDLE_LIMIT_MS })) {
      const [before, accepted] = [last, receiver.accept(message)];
      last = before.then(async () => handle(await accepted));
      ahead.push(last);
      if (ahead.length > HASHES_AHEAD) await ahead.shift();
    }
    await last;
    receiver.end();
  }
}

/** Puts the parts of a chunk into a stage, and full stages into the cache while the next one is filled. */
class Installer {
  #filling: KvStage | null = null;
  #waitingBytes = 0;
  #tail: Promise<void> = Promise.resolve();

  constructor(
    private readonly sequence: Sequence,
    private readonly geometry: Geometry,
  ) {}

  async take(event: TransferEvent): Promise<void> {
    if (event.type !== 'shard') return;
    const { header, parts, chunkComplete } = event;
    if (this.#filling === null) {
      const bytes = chunkBytesOf(this.geometry, header.chunkEnd - header.chunkStart);
      while (this.#waitingBytes > 0 && this.#waitingBytes + bytes > STAGED_BYTES) await this.#tail;
      this.#filling = this.sequence.stage(header.chunkStart, header.chunkEnd, header.windowStart);
    }
    const stage = this.#filling;
    for (const { layer, kind, tokenStart, tokenCount, bytes } of parts) {
      stage.put(layer, kind, tokenStart, tokenCount, 'f16', bytes);
    }
    if (chunkComplete === null) return;
    this.#filling = null;
    this.#push(stage);
  }

  finished(): Promise<void> {
    return this.#tail;
  }

  #push(stage: KvStage): void {
    const bytes = stage.sizeBytes;
    this.#waitingBytes += bytes;
    this.#tail = this.#tail
      .then(() => this.sequence.install(stage))
      .finally(() => {
        this.#waitingBytes -= bytes;
        stage.dispose();
      });
  }
}
