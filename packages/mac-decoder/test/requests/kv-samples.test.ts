// The check itself, on real engines: what it takes for right and for wrong, and what becomes of the sequence.
import { Engine, loadModel, type Model, type Sequence } from '@muser/metal';
import { rowBytesOf, windowStartOf, type Geometry } from '@muser/protocol';
import { createLogger } from '@muser/service-kit';
import { needleDocument } from '@muser/testing';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { SequenceLease } from '../../src/engine/sequence-lease.js';
import { KvSamples } from '../../src/requests/kv-samples.js';
import { MODEL_PATH } from '../support/rig.js';

const CONTEXT_TOKENS = 4_096;
/** As long as muse-nano's window. */
const CHUNK_TOKENS = 512;
const logger = createLogger('decoder', 'silent');
const PRODUCER = 'the producer';
const never = new AbortController().signal;

let model: Model;
let geometry: Geometry;
let producer: Engine;
let decoder: Engine;

beforeAll(async () => {
  model = await loadModel(MODEL_PATH);
  geometry = { ...model.info.geometry, vocabularySize: model.info.vocabularySize };
  [producer, decoder] = [await engineOf('f16'), await engineOf('f16')];
});
afterAll(async () => {
  await Promise.all([producer.close(), decoder.close()]);
  model.close();
});

function engineOf(kvType: 'f16' | 'q8_0', chunkTokens = CHUNK_TOKENS): Promise<Engine> {
  const options = { maxSequences: 2, contextTokens: CONTEXT_TOKENS, chunkTokens, flashAttention: true, threads: 1 };
  return Engine.create(model, { ...options, kvType });
}

function promptOf(seed: number, approximateTokens: number): Uint32Array {
  const tokenCount = (text: string): number => model.tokenize(text, { special: false }).length;
  const { text } = needleDocument({ seed, approximateTokens, tokenCount });
  return Uint32Array.from(model.tokenize(text, { special: false }));
}

function leaseOf(engine: Engine, tokens: Uint32Array): SequenceLease {
  const open = (): Sequence => engine.open(tokens.length + 1);
  return new SequenceLease({
    sequence: open(),
    reopen: async () => open(),
    giveBack: (sequence) => sequence.dispose(),
  });
}

/** Hands the rows of all tokens but the last over to a sequence of `engine`, in chunks. */
async function transferred(tokens: Uint32Array, engine = decoder, chunkTokens = CHUNK_TOKENS): Promise<SequenceLease> {
  const lease = leaseOf(engine, tokens);
  const source = producer.open(tokens.length);
  const end = tokens.length - 1;
  for (let from = 0; from < end; from += chunkTokens) {
    const to = Math.min(end, from + chunkTokens);
    await source.evaluate(tokens.subarray(from, to));
    const windowStart = windowStartOf(geometry, 0, from, to);
    const rows = await source.exportRange(from, to, { windowStart });
    const stage = lease.sequence.stage(from, to, windowStart);
    geometry.layers.forEach((layerKind, layer) => {
      const start = layerKind === 'window' ? windowStart : from;
      const bytes = Buffer.alloc(rowBytesOf(geometry) * (to - start));
      for (const kind of ['k', 'v'] as const) {
        rows.read(layer, kind, start, to - start, bytes, 0);
        stage.put(layer, kind, start, to - start, 'f16', bytes);
      }
    });
    rows.dispose();
    await lease.sequence.install(stage);
    stage.dispose();
  }
  await source.dispose();
  return lease;
}

const check = (samples: KvSamples, lease: SequenceLease, tokens: Uint32Array, signal = never) =>
  samples.check({ lease, producerId: PRODUCER, geometry, tokens, firstToken: 0, signal });

test.each(['f16', 'q8_0'] as const)('rows of an honest producer are never refused: cache of %s', async (kvType) => {
  const engine = await engineOf(kvType);
  const samples = new KvSamples({ share: 1, logger });
  const lengths = [2, 5, 17, 18, 40, 300, 520, 530, 700, 1_100];
  for (const [index, length] of lengths.entries()) {
    const tokens = promptOf(index + 1, length + 60).subarray(0, length);
    const lease = await transferred(tokens, engine);
    expect([length, await check(samples, lease, tokens), lease.sequence.position]).toEqual([length, null, length - 1]);
    await lease.release();
  }
  expect(samples.counts).toEqual({ right: lengths.length, wrong: 0, skipped: 0 });
  await engine.close();
});

// promise: Whether a transfer was checked does not change the answer.
test('the next logits after a check are bit for bit those without it', async () => {
  const tokens = promptOf(3, 700);
  const logits: Float32Array[] = [];
  for (const share of [0, 1]) {
    const lease = await transferred(tokens);
    const samples = new KvSamples({ share, logger });
    await check(samples, lease, tokens);
    expect(samples.counts.right).toBe(share);
    await lease.sequence.evaluate(tokens.subarray(-1));
    logits.push(lease.sequence.lastLogits());
    await lease.release();
  }
  expect(logits[1]).toEqual(logits[0]);
});

test('without the window rows before the sample it is skipped, and the producer is due again', async () => {
  const samples = new KvSamples({ share: 1e-9, logger });
  const tokens = promptOf(4, 1_200);
  // The last chunk brings the last window's rows only, and no chunk before it has any.
  const lease = await transferred(tokens, decoder, 2 * CHUNK_TOKENS + tokens.length);
  expect(await check(samples, lease, tokens)).toBeNull();
  expect(samples.counts).toEqual({ right: 0, wrong: 0, skipped: 1 });
  expect(lease.sequence.position).toBe(tokens.length - 1);
  await lease.sequence.evaluate(tokens.subarray(-1));
  await lease.release();

  for (let time = 0; time < 3; time += 1) {
    const next = await transferred(tokens);
    expect(await check(samples, next, tokens)).toBeNull();
    await next.release();
  }
  expect(samples.counts).toEqual({ right: 1, wrong: 0, skipped: 1 });
});

test('a request that is cancelled during its check ends as cancelled, and frees its sequence', async () => {
  const samples = new KvSamples({ share: 1, logger });
  const tokens = promptOf(5, 700);
  const lease = await transferred(tokens);
  const cancel = new AbortController();
  const { sequence } = lease;
  const evaluate = sequence.evaluate.bind(sequence);
  sequence.evaluate = (...call) => {
    cancel.abort();
    return evaluate(...call);
  };
  await expect(check(samples, lease, tokens, cancel.signal)).rejects.toMatchObject({ code: 'CANCELLED' });
  expect(samples.counts).toEqual({ right: 0, wrong: 0, skipped: 0 });
  await lease.release();
  expect(decoder.stats().sequences).toBe(0);
});

test('a share is that share', async () => {
  const tokens = promptOf(6, 60).subarray(0, 20);
  const samples = new KvSamples({ share: 0.5, logger });
  const lease = await transferred(tokens);
  // 400 draws: outside these bounds once in a billion runs.
  for (let time = 0; time < 400; time += 1) await check(samples, lease, tokens);
  expect(samples.counts.right).toBeGreaterThan(140);
  expect(samples.counts.right).toBeLessThan(260);
  await lease.release();
});
