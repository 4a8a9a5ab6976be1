import { randomBytes } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';

import {
  encodePrefillRequest,
  type ModelIdentity,
  MuserError,
  type PrefillRequest,
  type Progress,
  requestDigestOf,
  type Seal,
  sealTicket,
  type SigningKey,
  type Ticket,
  tokensDigest,
  TransferReceiver,
  type TransferEvent,
  verifyingKey,
} from '@muser/protocol';
import { createLogger } from '@muser/service-kit';
import { TestAuthority, type TestIdentity, writeIdentityFolder } from '@muser/testing';
import { formatTarget, PeerClient } from '@muser/transport';

import type { PrefillBackend } from '../../src/backend/backend.js';
import type { openBackend } from '../../src/backend/open-backend.js';
import { producerConfigSchema } from '../../src/config.js';
import { identityDir, type Producer, startProducer } from '../../src/producer.js';
import { MUSE_NANO } from './model.js';
import { Rows } from './rows.js';

/** Far beyond what any test needs: a test that hangs shall fail with a code. */
const TEST_DEADLINE_MS = 50_000;

export interface RequestOptions extends Partial<PrefillRequest> {
  tokens: Uint32Array;
  ticketFields?: Partial<Ticket>;
  ticketKey?: SigningKey;
}

export interface Parties {
  authority: TestAuthority;
  decoderId: string;
  producerId: string;
  model: ModelIdentity;
}

/** A request that its producer accepts, unless the options make it one that it must not. */
export function signedRequest({ authority, decoderId, producerId, model }: Parties, o: RequestOptions): PrefillRequest {
  const { tokens, ticketFields, ticketKey = authority.coordinatorKey, ...fields } = o;
  const { heldTokens = 0 } = fields;
  const decoderModel = new Uint8Array(32).fill(9);
  const nowMs = Date.now();
  const ticket: Ticket = {
    ticketId: randomBytes(16),
    decoderId,
    producerId,
    fingerprint: model.fingerprint,
    decoderModel,
    producerModel: model.modelDigest,
    maxPromptTokens: 131_072,
    issuedAtMs: nowMs,
    expiresAtMs: nowMs + 10 * 60_000,
    ...ticketFields,
  };
  return {
    protocolVersion: 1,
    nonce: randomBytes(16),
    ticket: sealTicket(ticket, ticketKey),
    fingerprint: model.fingerprint,
    decoderModel,
    tokens,
    heldTokens,
    heldDigest: heldTokens === 0 ? new Uint8Array(0) : tokensDigest(tokens, heldTokens),
    wireTypes: ['f16'],
    deadlineMs: TEST_DEADLINE_MS,
    chunkTokens: 0,
    ...fields,
  };
}

export interface Received {
  rows: Rows;
  seal: Seal;
  progress: Progress[];
  chunks: { start: number; end: number; windowStart: number }[];
}

/** A real producer on loopback with real certificates, and decoders that are enrolled with it. */
export class TestBed {
  readonly authority: TestAuthority;
  readonly stateDir: string;
  readonly #producerIdentity: TestIdentity;
  readonly #launch: () => Promise<Producer>;
  readonly #clients: PeerClient[] = [];
  #producer: Producer;

  private constructor(
    identities: { authority: TestAuthority; producer: TestIdentity },
    stateDir: string,
    launch: () => Promise<Producer>,
    producer: Producer,
  ) {
    this.authority = identities.authority;
    this.stateDir = stateDir;
    this.#producerIdentity = identities.producer;
    this.#launch = launch;
    this.#producer = producer;
  }

  /** @param engine a backend that is there already, or what opens one; left out: that of the configuration */
  static async start(
    config: Record<string, unknown> = {},
    engine?: PrefillBackend | typeof openBackend,
  ): Promise<TestBed> {
    const authority = await TestAuthority.create();
    const stateDir = await mkdtemp(join(tmpdir(), 'muser-producer-'));
    const identity = await authority.identity('producer');
    await writeIdentityFolder(identityDir(stateDir), identity);
    const open = typeof engine === 'object' ? () => Promise.resolve(engine) : engine;
    const launch = (): Promise<Producer> =>
      startProducer(
        producerConfigSchema.parse({ stateDir, model: MUSE_NANO, threads: 1, ...config }),
        createLogger('producer', 'silent'),
        new AbortController().signal,
        ...(open === undefined ? [] : [open]),
      );
    return new TestBed({ authority, producer: identity }, stateDir, launch, await launch());
  }

  get producer(): Producer {
    return this.#producer;
  }

  /** The same producer in a new process, as far as its state folder is concerned; it gets another address. */
  async restart(): Promise<void> {
    await this.#producer.close();
    this.#producer = await this.#launch();
  }

  get target(): string {
    return formatTarget(this.producer.address);
  }

  async close(): Promise<void> {
    for (const client of this.#clients) client.close();
    await this.producer.close();
    await rm(this.stateDir, { recursive: true });
  }

  /** @param known one that is enrolled already; left out: a new one */
  async peer(
    role: 'decoder' | 'coordinator' | 'producer',
    target = this.target,
    known?: TestIdentity,
  ): Promise<TestPeer> {
    const identity = known ?? (await this.authority.identity(role));
    const expect = { role: 'producer', nodeId: this.producer.nodeId } as const;
    const client = PeerClient.connect({ identity, target, expect });
    this.#clients.push(client);
    return new TestPeer(this, identity, client, this.#producerIdentity);
  }

  /** Waits until no transfer is left and says what they left behind. */
  async idle(): Promise<object> {
    const { transfers, backend } = this.producer;
    await until(() => transfers.load.activeTransfers === 0);
    const { queueLength, stagedBytes } = transfers.load;
    return { ...backend.stats(), queueLength, stagedBytes };
  }
}

export const NOTHING_LEFT = {
  activePrefills: 0,
  reservedTokens: 0,
  unreleasedChunks: 0,
  queueLength: 0,
  stagedBytes: 0,
};

/** Polls a state of the producer that has no event; fails instead of hanging. */
export async function until(condition: () => boolean): Promise<void> {
  const endMs = performance.now() + TEST_DEADLINE_MS;
  while (!condition()) {
    if (performance.now() > endMs) throw new Error(`never came true: ${condition.toString()}`);
    await delay(2);
  }
}

export class TestPeer {
  readonly identity: TestIdentity;
  readonly client: PeerClient;
  readonly #bed: TestBed;
  readonly #producerIdentity: TestIdentity;

  constructor(bed: TestBed, identity: TestIdentity, client: PeerClient, producerIdentity: TestIdentity) {
    this.#bed = bed;
    this.identity = identity;
    this.client = client;
    this.#producerIdentity = producerIdentity;
  }

  request(options: RequestOptions): PrefillRequest {
    const { producer, authority } = this.#bed;
    const parties = {
      authority,
      decoderId: this.identity.nodeId,
      producerId: producer.nodeId,
      model: producer.backend.model.identity,
    };
    return signedRequest(parties, options);
  }

  /** Receives a whole transfer as a decoder does. `onEvent` may wait: the reader is as slow then. */
  async receive(
    request: PrefillRequest,
    o: { signal?: AbortSignal; onEvent?: (event: TransferEvent) => unknown } = {},
  ): Promise<Received> {
    const bytes = encodePrefillRequest(request);
    const { geometry, identity } = this.#bed.producer.backend.model;
    const receiver = new TransferReceiver({
      nonce: request.nonce,
      requestDigest: requestDigestOf(bytes),
      expect: {
        producerId: this.#producerIdentity.nodeId,
        producerKey: verifyingKey(this.#producerIdentity.signingKey.publicKey),
        fingerprint: identity.fingerprint,
        geometry,
        wireTypes: request.wireTypes,
        firstToken: request.heldTokens,
        endToken: request.tokens.length - 1,
      },
    });
    const rows = new Rows(geometry, 'f16', request.tokens.length - 1);
    const progress: Progress[] = [];
    const chunks: Received['chunks'] = [];
    let seal: Seal | null = null;
    for await (const message of this.client.prefill(bytes, { ...(o.signal && { signal: o.signal }) })) {
      const event = await receiver.accept(message);
      await o.onEvent?.(event);
      if (event.type === 'progress') progress.push(event.progress);
      if (event.type === 'sealed') seal = event.seal;
      if (event.type !== 'shard') continue;
      for (const part of event.parts) rows.put(part.layer, part.kind, part.tokenStart, part.bytes);
      if (event.chunkComplete !== null) chunks.push(event.chunkComplete);
    }
    receiver.end();
    if (seal === null) throw new MuserError('TRANSFER_TRUNCATED', 'no seal');
    return { rows, seal, progress, chunks };
  }
}
