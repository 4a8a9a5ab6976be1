// Random orders of everything that can happen to the transfers of a producer: each settles once and leaves nothing behind.
import {
  encodePrefillRequest,
  isErrorCode,
  MuserError,
  type PrefillRequest,
  requestDigestOf,
  TransferReceiver,
  verifyingKey,
} from '@muser/protocol';
import { createLogger } from '@muser/service-kit';
import { Random, TestAuthority, type TestIdentity } from '@muser/testing';
import { beforeAll, describe, expect, it } from 'vitest';

import { TransferService } from '../src/transfer/transfer-service.js';
import { GatedReader } from './support/gated-reader.js';
import { PATTERN_GEOMETRY, PatternBackend } from './support/pattern-backend.js';
import { promptTokens } from './support/rows.js';
import { NOTHING_LEFT, signedRequest } from './support/test-bed.js';

const SEED = 20_261_130;
const ROUNDS = 150;
/** Two chunks of the geometry at least. */
const STAGING_BYTES = 3 * 64 * 3 * 2 * 2 * 64 * 2;

let authority: TestAuthority;
let producer: TestIdentity;
let decoder: TestIdentity;
beforeAll(async () => {
  authority = await TestAuthority.create();
  [producer, decoder] = await Promise.all([authority.identity('producer'), authority.identity('decoder')]);
});

interface Running {
  readonly request: PrefillRequest;
  readonly bytes: Buffer;
  readonly reader: GatedReader;
  /** One entry once it has settled: null, or what it was refused or ended with. */
  readonly settled: (MuserError | null)[];
  readonly done: Promise<void>;
}

/** What may happen at any moment. */
type Step = 'start' | 'compute' | 'take' | 'leave' | 'stall' | 'unreadable' | 'broken engine' | 'drain' | 'wait';

/** How often each is picked. */
const WEIGHTS: readonly [Step, number][] = [
  ['start', 12],
  ['compute', 20],
  ['take', 30],
  ['wait', 20],
  ['leave', 5],
  ['stall', 3],
  ['unreadable', 1],
  ['broken engine', 1],
  ['drain', 1],
];
const STEPS = WEIGHTS.flatMap(([step, weight]) => Array.from({ length: weight }, () => step));

class Round {
  readonly backend = new PatternBackend({ maxConcurrent: 2 }, 0);
  readonly service: TransferService;
  readonly running: Running[] = [];
  readonly history: string[] = [];
  drained: Promise<void> = Promise.resolve();

  constructor(private readonly random: Random) {
    this.service = new TransferService({
      producerId: producer.nodeId,
      signingKey: producer.signingKey,
      coordinatorKey: verifyingKey(authority.coordinatorKey.publicKey),
      backend: this.backend,
      queueLimit: 2,
      stagingBytes: 2 * STAGING_BYTES,
      stagingBytesPerTransfer: STAGING_BYTES,
      sharedPrefixCache: false,
      logger: createLogger('producer', 'silent'),
    });
  }

  async play(): Promise<void> {
    for (let steps = this.random.integer(5, 60); steps > 0; steps--) {
      const step = this.random.pick(STEPS);
      this.history.push(step);
      this.#do(step);
      // Lets others run, now and then for longer.
      for (let turns = this.random.integer(0, 4); turns > 0; turns--) await turn();
    }
    this.backend.allow(Infinity);
    for (const { reader } of this.running) reader.take(Infinity);
    await Promise.all(this.running.map(({ done }) => done));
    await this.drained;
  }

  #do(step: Step): void {
    const { random, backend } = this;
    const some = this.running.length > 0 ? random.pick(this.running) : null;
    if (step === 'start') this.#start();
    if (step === 'compute') backend.allow(random.integer(1, 4));
    if (step === 'take') some?.reader.take(random.integer(1, 6));
    if (step === 'leave') some?.reader.leave();
    if (step === 'stall') some?.reader.stall();
    if (step === 'unreadable') backend.readError = new Error('secret');
    if (step === 'broken engine') backend.stepError = new MuserError('ENGINE_FAILED', 'out of luck');
    if (step === 'drain') this.drained = this.service.drain(random.integer(0, 1) === 0 ? 1 : 60_000);
  }

  #start(): void {
    const { random } = this;
    const tokens = promptTokens(random.integer(2, 600), PATTERN_GEOMETRY.vocabularySize, random.integer(0, 1_000));
    const parties = {
      authority,
      decoderId: decoder.nodeId,
      producerId: producer.nodeId,
      model: this.backend.model.identity,
    };
    const again = this.running.length > 0 && random.integer(0, 9) === 0 ? random.pick(this.running).request : null;
    const request =
      again ??
      signedRequest(parties, {
        tokens,
        heldTokens: random.integer(0, 2) === 0 ? random.integer(0, tokens.length - 2) : 0,
        chunkTokens: random.pick([0, 7, 64]),
        deadlineMs: random.integer(0, 9) === 0 ? 1 : 60_000,
      });
    const bytes = encodePrefillRequest(request);
    const reader = new GatedReader(random.integer(0, 3));
    const settled: (MuserError | null)[] = [];
    const peer = { role: 'decoder' as const, nodeId: decoder.nodeId, notAfter: new Date(8.64e15), serial: '01' };
    const call = { peer, requestBytes: bytes, signal: reader.gone, send: reader.send, bytesInFlight: 0 };
    const done = this.service.prefill(call).then(
      () => void settled.push(null),
      (error: unknown) => void settled.push(error as MuserError),
    );
    this.running.push({ request, bytes, reader, settled, done });
  }
}

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

/** What a transfer has told its reader fits how it ended. Returns that end. */
async function expectEnd({ request, bytes, reader, settled }: Running): Promise<string> {
  expect(settled, 'settles once').toHaveLength(1);
  const [error = null] = settled;
  const { kinds, errorCode } = reader;
  const lastKind = kinds.at(-1);
  if (kinds.length > 0) expect(kinds[0] === 'begin' || kinds[0] === 'error').toBe(true);
  expect(kinds.filter((kind) => kind === 'begin').length).toBeLessThanOrEqual(1);
  expect(kinds.slice(0, -1).some((kind) => kind === 'seal' || kind === 'error')).toBe(false);
  if (error !== null) {
    expect(error).toBeInstanceOf(MuserError);
    expect(isErrorCode(error.code)).toBe(true);
    expect(error.message).not.toContain('secret');
    return error.code;
  }
  if (errorCode !== null) return errorCode;
  if (reader.gone.aborted && lastKind !== 'seal') return 'CANCELLED';
  expect(lastKind).toBe('seal');
  const receiver = new TransferReceiver({
    nonce: request.nonce,
    requestDigest: requestDigestOf(bytes),
    expect: {
      producerId: producer.nodeId,
      producerKey: verifyingKey(producer.signingKey.publicKey),
      fingerprint: request.fingerprint,
      geometry: PATTERN_GEOMETRY,
      wireTypes: request.wireTypes,
      firstToken: request.heldTokens,
      endToken: request.tokens.length - 1,
    },
  });
  for (const frame of reader.taken) await receiver.accept(frame);
  receiver.end();
  return 'sealed';
}

describe('random orders of what can happen at a producer', () => {
  // fault: held-after-abort
  // fault: fails-under-load
  it(`${ROUNDS} rounds: every transfer settles once and leaves nothing`, { timeout: 120_000 }, async () => {
    const random = new Random(SEED);
    const seen = new Set<string>();
    for (let number = 0; number < ROUNDS; number++) {
      const round = new Round(random);
      try {
        await round.play();
        const frames = round.running.map(({ reader }) => reader.taken.length);
        for (const transfer of round.running) seen.add(await expectEnd(transfer));
        await turn();
        expect(
          round.running.map(({ reader }) => reader.taken.length),
          'nothing comes later',
        ).toEqual(frames);
        const { activeTransfers, queueLength, stagedBytes } = round.service.load;
        expect(activeTransfers).toBe(0);
        expect({ ...round.backend.stats(), queueLength, stagedBytes }).toEqual(NOTHING_LEFT);
      } catch (cause) {
        throw new Error(`seed ${SEED}, round ${number}: ${round.history.join(', ')}`, { cause });
      }
    }
    // The orders are worth something only when they reach the different ends.
    const ends = ['sealed', 'CANCELLED', 'STALLED', 'DEADLINE_EXCEEDED', 'PRODUCER_DRAINING', 'QUEUE_FULL'];
    expect([...seen]).toEqual(expect.arrayContaining([...ends, 'NONCE_ACTIVE', 'ENGINE_FAILED', 'INTERNAL']));
  });
});
