import { createHash, randomBytes } from 'node:crypto';
import { closeSync, openSync, readFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { loadModel, type Model } from '@muser/metal';
import { fingerprintOf, sealTicket, TICKET_LIFETIME_MS, type ProducerEntry } from '@muser/protocol';
import { createLogger, flushLogger } from '@muser/service-kit';
import {
  needleDocument,
  TestAuthority,
  writeIdentityFolder,
  type NeedleDocument,
  type TestIdentity,
} from '@muser/testing';
import { decoderConfigSchema, type DecoderConfig } from '../../src/config.js';
import { startDecoder, type RunningDecoder } from '../../src/decoder.js';
import { startStandInCoordinator, type StandInCoordinator } from './stand-in-coordinator.js';
import { startStandInProducer, type Misbehaviour, type StandInProducer } from './stand-in-producer.js';

export const MODEL_PATH = fileURLToPath(new URL('../../../../models/muse-nano/muse-nano-q8_0.gguf', import.meta.url));
export const CHUNK_TOKENS = 512;
const CONTEXT_TOKENS = 8_192;
const WAIT_LIMIT_MS = 20_000;

/** A decoder under test with everything around it, all on real sockets, engines and certificates. */
export class Rig {
  private constructor(
    readonly authority: TestAuthority,
    readonly identities: { decoder: TestIdentity; producer: TestIdentity; coordinator: TestIdentity },
    readonly model: Model,
    readonly modelDigest: Uint8Array,
    readonly producer: StandInProducer,
    private stateDir: string,
    private logFile: { path: string; descriptor: number },
    public coordinator: StandInCoordinator,
    public decoder: RunningDecoder,
  ) {}

  static async start(overrides: Partial<DecoderConfig> = {}): Promise<Rig> {
    const authority = await TestAuthority.create();
    const [decoderId, producerId, coordinatorId] = await Promise.all([
      authority.identity('decoder'),
      authority.identity('producer'),
      authority.identity('coordinator'),
    ]);
    const stateDir = await mkdtemp(join(tmpdir(), 'muser-decoder-'));
    await writeIdentityFolder(join(stateDir, 'identity'), decoderId);
    const model = await loadModel(MODEL_PATH);
    const modelDigest = createHash('sha256').update(readFileSync(MODEL_PATH)).digest();
    const producer = await startStandInProducer({
      identity: producerId,
      model,
      modelDigest,
      contextTokens: CONTEXT_TOKENS,
      chunkTokens: CHUNK_TOKENS,
    });
    const coordinator = await startStandInCoordinator(coordinatorId);
    const logPath = join(stateDir, 'decoder.log');
    const descriptor = openSync(logPath, 'a');
    const config = decoderConfigSchema.parse({
      stateDir,
      model: MODEL_PATH,
      contextTokens: CONTEXT_TOKENS,
      chunkTokens: CHUNK_TOKENS,
      threads: 1,
      coordinator: coordinator.target,
      stallTimeoutMs: 60_000,
      drainMs: 2_000,
      ...overrides,
    });
    const logger = createLogger('decoder', 'trace', descriptor);
    const decoder = await startDecoder(config, logger, new AbortController().signal);
    const rig = new Rig(
      authority,
      { decoder: decoderId, producer: producerId, coordinator: coordinatorId },
      model,
      modelDigest,
      producer,
      stateDir,
      { path: logPath, descriptor },
      coordinator,
      decoder,
    );
    rig.flushLog = () => flushLogger(logger);
    return rig;
  }

  private flushLog: () => Promise<void> = () => Promise.resolve();

  get url(): string {
    return this.decoder.ready.http;
  }

  /** The stand-in producer as the coordinator lists it. */
  entry(over: Partial<ProducerEntry> = {}): ProducerEntry {
    const { producer, decoder } = this.identities;
    const { info } = this.model;
    const geometry = { ...info.geometry, vocabularySize: info.vocabularySize };
    const now = Date.now();
    const ticket = sealTicket(
      {
        ticketId: randomBytes(16),
        decoderId: decoder.nodeId,
        producerId: producer.nodeId,
        fingerprint: fingerprintOf({ geometry, tokenizerSha256: info.tokenizerSha256 }),
        decoderModel: this.modelDigest,
        producerModel: this.modelDigest,
        maxPromptTokens: 32_768,
        issuedAtMs: now,
        expiresAtMs: now + TICKET_LIFETIME_MS,
      },
      this.authority.coordinatorKey,
    );
    return {
      nodeId: producer.nodeId,
      name: 'stand-in',
      addresses: [this.producer.target],
      signingPublicKey: producer.signingKey.publicKey,
      producerModel: this.modelDigest,
      state: 'ready',
      queueLength: 0,
      prefillTokensPerSecond: 0,
      maxPromptTokens: 32_768,
      ticket,
      ticketExpiresAtMs: now + TICKET_LIFETIME_MS,
      backend: 'llama',
      ...over,
    };
  }

  /** Makes the decoder know exactly this producer, with a clean record, and the producer behave like this. */
  async offer(over: Partial<ProducerEntry> = {}, how: Misbehaviour = {}): Promise<void> {
    this.producer.misbehave(how);
    for (const state of ['error', 'ready'] as const) {
      const entry = this.entry({ state, ...(state === 'ready' ? over : { ...over, state }) });
      this.coordinator.publish([entry]);
      await this.until(async () => {
        const { producers } = await this.health();
        return producers.length === 1 && producers[0]?.nodeId === entry.nodeId && producers[0].state === entry.state;
      });
    }
  }

  async restartCoordinator(): Promise<void> {
    const port = Number(this.coordinator.target.split(':')[1]);
    this.coordinator = await startStandInCoordinator(this.identities.coordinator, port);
  }

  async health(): Promise<{
    producers: { nodeId: string; state: string }[];
    coordinator: string;
    sequences: { active: number; max: number };
    checkedTransfers: { right: number; wrong: number; skipped: number };
  }> {
    return (await (await fetch(`${this.url}/health`)).json()) as Awaited<ReturnType<Rig['health']>>;
  }

  /** Waits until nothing of any request is left in either engine. */
  async settled(): Promise<void> {
    await this.until(async () => {
      const { sequences } = await this.health();
      return sequences.active === 0 && this.producer.running() === 0 && this.producer.engine.stats().sequences === 0;
    });
  }

  async until(condition: () => Promise<boolean>): Promise<void> {
    const deadline = performance.now() + WAIT_LIMIT_MS;
    while (!(await condition())) {
      if (performance.now() > deadline) throw new Error(`not reached within ${WAIT_LIMIT_MS} ms: ${String(condition)}`);
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
  }

  async log(): Promise<string> {
    await this.flushLog();
    return readFileSync(this.logFile.path, 'utf8');
  }

  /** A document with a needle, and the prompt that asks for it. */
  document(seed: number, approximateTokens: number): NeedleDocument & { prompt: string } {
    const found = needleDocument({
      seed,
      approximateTokens,
      tokenCount: (text) => this.model.tokenize(text, { special: false }).length,
    });
    return { ...found, prompt: `${found.text}\n\n${found.question}` };
  }

  async close(): Promise<void> {
    await this.decoder.close();
    await this.coordinator.close();
    await this.producer.close();
    this.model.close();
    await this.flushLog();
    closeSync(this.logFile.descriptor);
    await rm(this.stateDir, { recursive: true, force: true });
  }
}
