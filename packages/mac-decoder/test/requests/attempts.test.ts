// What becomes of a request after each attempt, with producers that a test plays; the clock is driven by hand.
import { MuserError, type ErrorCode, type Geometry } from '@muser/protocol';
import { createLogger } from '@muser/service-kit';
import { Random } from '@muser/testing';
import { describe, expect, test } from 'vitest';
import type { PrefillMode } from '../../src/config.js';
import { TransferFigures } from '../../src/ingest/figures.js';
import type { TransferResult } from '../../src/ingest/transfer.js';
import { Pace } from '../../src/placement/pace.js';
import { MeasuredRates } from '../../src/placement/rates.js';
import { ProducerDirectory, type Producer } from '../../src/producers/directory.js';
import { attemptPrefill, type Attempt } from '../../src/requests/attempts.js';
import { producerEntry, producerList } from '../support/entries.js';

const SEED = 20_261_202;
const ROUNDS = 1_000;
const PROMPT = 10_000;
const CHUNK = 500;
/** Of this decoder and of every producer, tokens a second. */
const LOCAL = 100;
const REMOTE = 1_000;

const geometry: Geometry = {
  layers: ['window', 'global'],
  kvHeads: 1,
  headDimension: 64,
  windowTokens: 128,
  ropeBase: 10_000,
  ropeLayers: 'all',
  vocabularySize: 100,
};

/** How an attempt ends: where the sequence is then, after which time, and why. */
interface Ending {
  readonly to: number;
  readonly code: ErrorCode | null;
  readonly ms?: number;
  readonly failedHere?: boolean;
  /** Whether Begin had come. */
  readonly began?: boolean;
}

interface Call {
  readonly producer: string;
  readonly from: number;
  readonly at: number;
  readonly deadlineMs: number;
}

/** A directory of producers A, B, ..., and one request whose attempts `play` ends. */
class World {
  at = 0;
  readonly calls: Call[] = [];
  readonly pauses: number[] = [];
  readonly directory = new ProducerDirectory(() => this.at);
  readonly rates = new MeasuredRates(() => this.at);
  deadlineMs = 600_000;
  random = (): number => 1;
  onSleep = (): void => undefined;

  constructor(names: string) {
    this.publish(names);
    this.rates.local.learn(0, LOCAL, 1_000);
  }

  publish(names: string): void {
    const entries = [...names].map((nodeId) =>
      producerEntry({ nodeId, name: nodeId, prefillTokensPerSecond: REMOTE, ticketExpiresAtMs: 1e12 }),
    );
    this.directory.update(producerList(...entries));
  }

  producer(nodeId: string): Producer {
    const producer = this.directory.all().find(({ entry }) => entry.nodeId === nodeId);
    if (producer === undefined) throw new Error(`no producer ${nodeId}`);
    return producer;
  }

  async run(mode: PrefillMode, play: (call: Call) => Ending): Promise<Attempt[]> {
    let position = 0;
    const localMs = (from: number, to: number): number => this.rates.local.predictMs(from, to);
    const pace = new Pace({ localMs, promptTokens: PROMPT, heldTokens: 0, placedAt: this.at });
    return attemptPrefill({
      requestId: 'test',
      mode,
      first: this.producer('A'),
      work: { promptTokens: PROMPT, geometry, chunkTokens: CHUNK },
      heldTokens: 0,
      pace: mode === 'auto' ? pace : null,
      deadlineMs: this.deadlineMs,
      directory: this.directory,
      rates: this.rates,
      attempt: async (producer, { deadlineMs }) => {
        const call = { producer: producer.entry.nodeId, from: position, at: this.at, deadlineMs };
        this.calls.push(call);
        producer.circuit.begin();
        const ending = play(call);
        this.at += ending.ms ?? 0;
        if (ending.code === null) producer.circuit.succeeded();
        else producer.circuit.failed(ending.code);
        position = ending.to;
        return resultOf(ending);
      },
      now: () => this.at,
      sleep: async (milliseconds) => {
        this.pauses.push(milliseconds);
        this.at += milliseconds;
        this.onSleep();
      },
      random: () => this.random(),
      logger: createLogger('test', 'silent'),
    });
  }

  get asked(): string {
    return this.calls.map(({ producer }) => producer).join('');
  }
}

function resultOf({ to, code, failedHere = false, began = true }: Ending): TransferResult {
  const figures = new TransferFigures();
  figures.beginAt = began ? 0 : null;
  const failure = code === null ? null : new MuserError(code, 'the test ends it');
  return { position: to, failure, failedHere, reached: code === null ? 'installed' : 'receiving', figures };
}

const whole = { to: PROMPT - 1, code: null };

describe('after a failure of the producer', () => {
  test.each<ErrorCode>([
    'ENGINE_FAILED',
    'STALLED',
    'TRANSFER_TRUNCATED',
    'DIGEST_MISMATCH',
    'SIGNATURE_INVALID',
    'QUEUE_FULL',
    'PRODUCER_DRAINING',
  ])('%s: another one goes on from the resume point, and the same one is not asked again', async (code) => {
    const world = new World('AB');
    const attempts = await world.run('remote', ({ producer, from }) =>
      producer === 'A' ? { to: from + CHUNK, code } : whole,
    );
    expect(world.asked).toBe('AB');
    expect(attempts.map(({ from, to }) => [from, to])).toEqual([
      [0, CHUNK],
      [CHUNK, PROMPT - 1],
    ]);
  });

  test('every producer is tried once; then it is local', async () => {
    const world = new World('ABC');
    const attempts = await world.run('remote', ({ from }) => ({ to: from + CHUNK, code: 'ENGINE_FAILED' }));
    expect([...world.asked].sort().join('')).toBe('ABC');
    expect(attempts.at(-1)).toMatchObject({ to: 3 * CHUNK });
    expect(world.pauses).toEqual([]);
  });

  test('nobody else is asked after a failure of this decoder, or when the producer was too slow', async () => {
    for (const ending of [
      { to: 0, code: 'OUT_OF_MEMORY', failedHere: true },
      { to: CHUNK, code: 'PRODUCER_SLOW' },
    ] as const) {
      const world = new World('AB');
      await world.run('auto', () => ending);
      expect(world.asked).toBe('A');
    }
  });

  test('a prompt of which only the last token is missing is finished here', async () => {
    const world = new World('AB');
    await world.run('remote', () => ({ to: PROMPT - 1, code: 'TRANSFER_TRUNCATED' }));
    expect(world.asked).toBe('A');
  });
});

describe('after the link dropped', () => {
  const drop: Ending = { to: 0, code: 'PEER_UNREACHABLE' };

  test('the same producer is asked again after pauses that grow, a few times', async () => {
    const world = new World('A');
    await world.run('remote', () => drop);
    expect(world.asked).toBe('AAAAA');
    expect(world.pauses).toEqual([100, 300, 900, 2_700]);
  });

  test('pauses have jitter, downwards', async () => {
    const world = new World('A');
    world.random = () => 0;
    await world.run('remote', () => drop);
    expect(world.pauses).toEqual([75, 225, 675, 2_025]);
  });

  test('a new resume point makes the next pause short again', async () => {
    const world = new World('A');
    await world.run('remote', ({ from }) => (from < 3 * CHUNK ? { ...drop, to: from + CHUNK } : whole));
    expect(world.pauses).toEqual([100, 100, 100]);
  });

  test('another producer is asked when it is sooner, and the dropped one is left', async () => {
    const world = new World('AB');
    await world.run('remote', ({ producer }) => (producer === 'A' ? drop : whole));
    expect(world.asked).toBe('AB');
    expect(world.pauses).toEqual([]);
  });

  test('a producer that never answered is not waited for', async () => {
    const world = new World('A');
    await world.run('remote', () => ({ ...drop, began: false }));
    expect(world.asked).toBe('A');
  });

  test('one whose rows another request found wrong meanwhile is not waited for', async () => {
    const world = new World('A');
    await world.run('remote', () => {
      world.directory.distrust(['A']);
      return drop;
    });
    expect(world).toMatchObject({ asked: 'A', pauses: [] });
  });

  test('one that left the list during the pause is not asked again', async () => {
    const world = new World('A');
    world.onSleep = () => world.publish('');
    await world.run('remote', () => drop);
    expect(world.asked).toBe('A');
  });

  test('in mode auto only as long as waiting is sooner than local prefill', async () => {
    const world = new World('A');
    // Local prefill of the rest takes 100 s, so 10 s and the constant may be lost, and no more.
    await world.run('auto', () => ({ ...drop, ms: 4_000 }));
    expect(world.calls.every(({ at }) => at < 10_200)).toBe(true);
    expect(world.calls.length).toBeGreaterThan(1);
    expect(world.calls.length).toBeLessThan(5);
  });

  test('pauses and attempts together never exceed the deadline', async () => {
    const world = new World('A');
    world.deadlineMs = 1_000;
    await world.run('remote', () => ({ ...drop, ms: 350 }));
    expect(world.calls.map(({ deadlineMs }) => deadlineMs)).toEqual([1_000, 550]);
    expect(world.pauses).toEqual([100]);
  });

  test('while another request finds out whether the link is back, this one waits', async () => {
    const world = new World('A');
    // The other request takes the one probe in the first pause, and succeeds in the third.
    world.onSleep = () => {
      if (world.pauses.length === 1) world.producer('A').circuit.begin();
      if (world.pauses.length === 3) world.producer('A').circuit.succeeded();
    };
    await world.run('remote', ({ at }) => (at === 0 ? drop : whole));
    expect(world.calls.map(({ at }) => at)).toEqual([0, 100 + 300 + 900]);
  });
});

const CODES: ErrorCode[] = ['PEER_UNREACHABLE', 'PEER_UNREACHABLE', 'ENGINE_FAILED', 'STALLED', 'QUEUE_FULL'];

/** An end that no order of events may bring about: progress is lost only with the whole sequence. */
function randomEnding(random: Random, from: number): Ending {
  const chunks = random.integer(0, 3);
  const to = Math.min(PROMPT - 1, from + chunks * CHUNK);
  const ms = random.integer(0, 5_000);
  if (random.integer(0, 4) === 0) return { ...whole, ms };
  if (random.integer(0, 9) === 0) return { to: 0, code: 'ENGINE_FAILED', failedHere: true, ms };
  return { to, code: random.pick(CODES), began: chunks > 0 || random.integer(0, 2) > 0, ms };
}

// promise: Whatever producers and links do, a request's remote prefill ends once, and no producer that failed is asked again.
test(`${ROUNDS} random orders of what can happen end once, and go on where they were`, async () => {
  const random = new Random(SEED);
  const seen = new Set<string>();
  for (let round = 0; round < ROUNDS; round++) {
    const mode = random.pick<PrefillMode>(['auto', 'remote']);
    const world = new World('ABCD'.slice(0, random.integer(1, 4)));
    world.random = () => random.integer(0, 1_000) / 1_000;
    world.onSleep = () => {
      if (random.integer(0, 5) === 0) world.publish(random.pick(['', 'A', 'AB', 'ABC']));
    };
    const endings: Ending[] = [];
    const attempts = await world.run(mode, ({ from }) => {
      const ending = randomEnding(random, from);
      endings.push(ending);
      return ending;
    });
    const message = `seed ${SEED}, round ${round}: ${mode}, ${world.asked}, ${JSON.stringify(endings)}`;
    expect(attempts.length, message).toBe(world.calls.length);
    expect(attempts.length, message).toBeLessThanOrEqual(8);
    attempts.forEach(({ from, to }, index) => {
      expect(from, message).toBe(attempts[index - 1]?.to ?? 0);
      expect(to, message).toBe(endings[index]?.to);
      const { code } = endings[index] ?? whole;
      // Only the last attempt may be a whole one, and only a dropped link is a reason to come back.
      if (code === null) expect(index, message).toBe(attempts.length - 1);
      if (code !== 'PEER_UNREACHABLE') expect(world.asked.indexOf(world.asked[index] ?? '', index + 1)).toBe(-1);
    });
    expect(Math.max(0, ...world.pauses)).toBeLessThanOrEqual(2_700);
    const last = endings.at(-1);
    seen.add(`${mode} ${last?.code ?? 'whole'}`);
  }
  expect([...seen]).toEqual(expect.arrayContaining(['auto whole', 'remote whole', 'remote STALLED', 'auto STALLED']));
});
