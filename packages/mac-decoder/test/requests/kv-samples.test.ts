// The check itself, on real engines: what it takes for right and for wrong, whom it blames, and what becomes of the sequence.
import { Engine, loadModel, type Model, type Sequence } from '@muser/metal';
import { rowBytesOf, windowStartOf, type Geometry, type KvKind } from '@muser/protocol';
import { createLogger } from '@muser/service-kit';
import { needleDocument } from '@muser/testing';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { RowOrigins } from '../../src/engine/row-origins.js';
import { SequenceLease } from '../../src/engine/sequence-lease.js';
import { KvSamples } from '../../src/requests/kv-samples.js';
import { MODEL_PATH } from '../support/rig.js';

const CONTEXT_TOKENS = 4_096;
/** As long as muse-nano's window. */
const CHUNK_TOKENS = 512;
const TEXT_TOKENS = 2_000;
const logger = createLogger('decoder', 'silent');
const PRODUCER = 'the producer';
const OTHER = 'another producer';
const never = new AbortController().signal;

let model: Model;
let geometry: Geometry;
let producer: Engine;
let decoder: Engine;
let text: Uint32Array;
/** Of the test that runs. */
const leases: SequenceLease[] = [];

beforeAll(async () => {
  model = await loadModel(MODEL_PATH);
  geometry = { ...model.info.geometry, vocabularySize: model.info.vocabularySize };
  [producer, decoder] = [await engineOf('f16'), await engineOf('f16')];
  const tokensOf = (of: string): number[] => [...model.tokenize(of, { special: false })];
  const document = needleDocument({
    seed: 1,
    approximateTokens: TEXT_TOKENS + 500,
    tokenCount: (of) => tokensOf(of).length,
  });
  text = Uint32Array.from(tokensOf(document.text)).subarray(0, TEXT_TOKENS);
});
afterEach(async () => {
  await Promise.all(leases.splice(0).map((lease) => lease.release()));
  expect(decoder.stats().sequences).toBe(0);
});
afterAll(async () => {
  await Promise.all([producer.close(), decoder.close()]);
  model.close();
});

function engineOf(kvType: 'f16' | 'q8_0'): Promise<Engine> {
  const options = { maxSequences: 2, contextTokens: CONTEXT_TOKENS, chunkTokens: CHUNK_TOKENS, flashAttention: true };
  return Engine.create(model, { ...options, threads: 1, kvType });
}

/** So many tokens of a text, from one place or another. */
const promptOf = (length: number, from = 0): Uint32Array => text.slice(from, from + length);

function leaseOf(engine: Engine, tokens: Uint32Array): SequenceLease {
  const open = (): Sequence => engine.open(tokens.length + 1);
  const lease = new SequenceLease({
    sequence: open(),
    origins: new RowOrigins(),
    reopen: async () => open(),
    giveBack: (sequence) => sequence.dispose(),
  });
  leases.push(lease);
  return lease;
}

/** What a producer may do otherwise than the honest one. */
interface Sent {
  readonly producerId?: string;
  readonly end?: number;
  readonly chunkTokens?: number;
  /** Changes the rows of one layer's K or V. */
  readonly change?: (rows: Buffer, layer: number, kind: KvKind) => void;
}

/** Hands rows over to a lease, from where its sequence is to `end` (all but the last token), in chunks. */
async function send(lease: SequenceLease, tokens: Uint32Array, sent: Sent = {}): Promise<void> {
  const { producerId = PRODUCER, end = tokens.length - 1, chunkTokens = CHUNK_TOKENS, change } = sent;
  const first = lease.sequence.position;
  const source = producer.open(tokens.length);
  if (first > 0) await source.evaluate(tokens.subarray(0, first));
  for (let from = first; from < end; from += chunkTokens) {
    const to = Math.min(end, from + chunkTokens);
    await source.evaluate(tokens.subarray(from, to));
    const windowStart = windowStartOf(geometry, first, from, to);
    const rows = await source.exportRange(from, to, { windowStart });
    const stage = lease.sequence.stage(from, to, windowStart);
    geometry.layers.forEach((layerKind, layer) => {
      const start = layerKind === 'window' ? windowStart : from;
      const bytes = Buffer.alloc(rowBytesOf(geometry) * (to - start));
      for (const kind of ['k', 'v'] as const) {
        rows.read(layer, kind, start, to - start, bytes, 0);
        change?.(bytes, layer, kind);
        stage.put(layer, kind, start, to - start, 'f16', bytes);
      }
    });
    rows.dispose();
    await lease.sequence.install(stage);
    stage.dispose();
  }
  await source.dispose();
  lease.origins.received(producerId, first, end);
}

/** A lease with the rows of all tokens but the last. */
async function transferred(tokens: Uint32Array, sent: Sent = {}, engine = decoder): Promise<SequenceLease> {
  const lease = leaseOf(engine, tokens);
  await send(lease, tokens, sent);
  return lease;
}

function check(
  samples: KvSamples,
  lease: SequenceLease,
  tokens: Uint32Array,
  { producerId = PRODUCER, due = false, firstToken = 0, signal = never } = {},
) {
  return samples.check({ lease, producerId, due, geometry, tokens, firstToken, signal });
}

const RIGHT = { foundRight: true, wrong: null };
const NOT_CHECKED = { foundRight: false, wrong: null };

test.each([
  ['f16', [2, 5, 17, 18, 520, 530]],
  ['q8_0', [17, 100]],
] as const)('rows of an honest producer are never refused: cache of %s', async (kvType, lengths) => {
  const engine = await engineOf(kvType);
  const samples = new KvSamples({ share: 1, logger });
  for (const length of lengths) {
    const tokens = promptOf(length, 100);
    const lease = await transferred(tokens, {}, engine);
    expect([length, await check(samples, lease, tokens), lease.sequence.position]).toEqual([length, RIGHT, length - 1]);
    await lease.release();
  }
  expect(samples.counts).toEqual({ right: lengths.length, wrong: 0, skipped: 0 });
  await engine.close();
});

// promise: Whether a transfer was checked does not change the answer.
test.each([
  ['16 tokens', 300],
  ['one token', 600],
])('the next logits after a check of %s are bit for bit those without it', async (_name, length) => {
  const tokens = promptOf(length);
  const logits: Float32Array[] = [];
  for (const share of [0, 1]) {
    const lease = await transferred(tokens, { chunkTokens: length });
    const samples = new KvSamples({ share, logger });
    await check(samples, lease, tokens);
    expect(samples.counts.right).toBe(share);
    await lease.sequence.evaluate(tokens.subarray(-1));
    logits.push(lease.sequence.lastLogits());
    await lease.release();
  }
  expect(logits[1]).toEqual(logits[0]);
});

describe('a chunk that is longer than the window', () => {
  const tokens = (): Uint32Array => promptOf(600);

  test('is checked by its last token', async () => {
    const samples = new KvSamples({ share: 1, logger });
    const lease = await transferred(tokens(), { chunkTokens: TEXT_TOKENS });
    expect(await check(samples, lease, tokens())).toEqual(RIGHT);
    expect(lease.sequence.position).toBe(tokens().length - 1);
  });

  test.each<[string, NonNullable<Sent['change']>]>([
    ['rows of zeros', (rows) => rows.fill(0)],
    ['the opposite of every number', (rows) => rows.forEach((byte, at) => (rows[at] = at % 2 ? byte ^ 0x80 : byte))],
  ])('is found out by it: %s', async (_name, change) => {
    const samples = new KvSamples({ share: 1, logger });
    const lease = await transferred(tokens(), { chunkTokens: TEXT_TOKENS, change });
    const { wrong } = await check(samples, lease, tokens());
    expect(wrong?.failure.code).toBe('KV_MISMATCH');
    expect(lease.sequence.position).toBe(0);
  });
});

test('where another sequence took window rows meanwhile the check is skipped, and the producer is due again', async () => {
  const samples = new KvSamples({ share: 1e-9, logger });
  const tokens = promptOf(600);
  // Nothing but the last window's rows comes, of which the first is the only one that may be taken.
  const lease = await transferred(tokens, { chunkTokens: TEXT_TOKENS });
  const other = decoder.open(text.length);
  await other.evaluate(text);
  await other.dispose();
  expect(await check(samples, lease, tokens)).toEqual(NOT_CHECKED);
  expect(samples.counts).toEqual({ right: 0, wrong: 0, skipped: 1 });
  expect(lease.sequence.position).toBe(tokens.length - 1);
  await lease.sequence.evaluate(tokens.subarray(-1));

  const next = await transferred(promptOf(40));
  for (const expected of [RIGHT, NOT_CHECKED, NOT_CHECKED]) {
    expect(await check(samples, next, promptOf(40))).toEqual(expected);
  }
});

describe('rows of several producers', () => {
  const LENGTH = 400;
  /** The sample is the last 16 tokens of the second producer's: it has hardly any other rows than the first's to attend to. */
  const BORDER = 380;
  const tokens = (): Uint32Array => promptOf(LENGTH);
  const opposite: NonNullable<Sent['change']> = (rows) =>
    rows.forEach((byte, at) => (rows[at] = at % 2 ? byte ^ 0x80 : byte));

  async function blamed(first: Sent, second: Sent) {
    const lease = leaseOf(decoder, tokens());
    await send(lease, tokens(), { ...first, producerId: OTHER, end: BORDER });
    await send(lease, tokens(), second);
    const samples = new KvSamples({ share: 1, logger });
    const { wrong } = await check(samples, lease, tokens(), { firstToken: BORDER });
    const { position } = lease.sequence;
    const kept = lease.origins.producerIds;
    return { producerIds: wrong?.producerIds, message: wrong?.failure.message, position, kept, samples };
  }

  // promise: When the sample attends to wrong rows of an earlier producer, everybody whose rows are there is distrusted.
  test('wrong ones of the first make the sample of the last wrong: both are distrusted', async () => {
    const { producerIds, message, position, kept, samples } = await blamed({ change: opposite }, {});
    expect(producerIds).toEqual([OTHER, PRODUCER]);
    expect(message).toContain(`One of ${OTHER}, ${PRODUCER} sent rows that are wrong`);
    expect([position, kept]).toEqual([0, []]);
    expect([OTHER, PRODUCER].map((one) => samples.mayKeep([one]))).toEqual([false, false]);
  });

  test('wrong ones of the last in layers that depend on other rows may be due to the first', async () => {
    const { producerIds } = await blamed(
      {},
      { change: (rows, layer, kind) => layer > 0 && opposite(rows, layer, kind) },
    );
    expect(producerIds).toEqual([OTHER, PRODUCER]);
  });

  test('wrong ones of the last in layer 0 depend on no others: it alone is distrusted, and the rows before its own stay', async () => {
    const { producerIds, position, kept, samples } = await blamed({}, { change: opposite });
    expect(producerIds).toEqual([PRODUCER]);
    expect([position, kept]).toEqual([BORDER, [OTHER]]);
    expect([OTHER, PRODUCER].map((one) => samples.mayKeep([one]))).toEqual([true, false]);
  });

  test('what was computed here before them stays', async () => {
    const lease = leaseOf(decoder, tokens());
    await lease.sequence.evaluate(tokens().subarray(0, BORDER));
    await send(lease, tokens(), { change: opposite });
    const samples = new KvSamples({ share: 1, logger });
    expect((await check(samples, lease, tokens(), { firstToken: BORDER })).wrong?.producerIds).toEqual([PRODUCER]);
    expect(lease.sequence.position).toBe(BORDER);
    await lease.sequence.evaluate(tokens().subarray(BORDER));
  });
});

test('rows of a transfer that did not complete are checked where they end', async () => {
  const samples = new KvSamples({ share: 1, logger });
  const tokens = promptOf(300);
  const lease = await transferred(tokens, { end: 200 });
  expect(await check(samples, lease, tokens)).toEqual(RIGHT);
  expect(lease.sequence.position).toBe(200);
});

test('a request that is cancelled during its check ends as cancelled, and frees its sequence', async () => {
  const samples = new KvSamples({ share: 1, logger });
  const tokens = promptOf(60);
  const lease = await transferred(tokens);
  const cancel = new AbortController();
  const { sequence } = lease;
  const evaluate = sequence.evaluate.bind(sequence);
  sequence.evaluate = (...call) => {
    cancel.abort();
    return evaluate(...call);
  };
  await expect(check(samples, lease, tokens, { signal: cancel.signal })).rejects.toMatchObject({ code: 'CANCELLED' });
  expect(samples.counts).toEqual({ right: 0, wrong: 0, skipped: 0 });
});

test('a share is that share, and a producer that is due is always taken', async () => {
  const tokens = promptOf(20);
  const samples = new KvSamples({ share: 0.25, logger });
  expect(Array.from({ length: 40 }, () => samples.isChosen(PRODUCER))).not.toContain(false);
  const lease = await transferred(tokens);
  await check(samples, lease, tokens);
  // Outside these bounds once in a billion runs.
  const chosen = Array.from({ length: 4_000 }, () => samples.isChosen(PRODUCER)).filter(Boolean).length;
  expect(Math.abs(chosen - 1_000)).toBeLessThan(170);
  const none = new KvSamples({ share: 1e-9, logger });
  await check(none, lease, tokens);
  expect(await check(none, lease, tokens)).toEqual(NOT_CHECKED);
  expect(await check(none, lease, tokens, { due: true })).toEqual(RIGHT);
});
