import { describe, expect, test } from 'vitest';
import type { Geometry } from '@muser/protocol';
import { chooseNext, choosePlacement, type NextRequest } from '../../src/placement/choose.js';
import { handoffBytes, predictRemote } from '../../src/placement/predict.js';
import { MeasuredRates, type AttemptSample } from '../../src/placement/rates.js';
import { ProducerDirectory } from '../../src/producers/directory.js';
import { producerEntry, producerList } from '../support/entries.js';

/** Muse Glimmer 30B's. */
const geometry: Geometry = {
  layers: Array.from({ length: 52 }, (_, layer) => (layer % 4 === 3 ? 'global' : 'window')),
  kvHeads: 2,
  headDimension: 128,
  windowTokens: 2_048,
  ropeBase: 500_000,
  ropeLayers: 'window',
  vocabularySize: 202_048,
};

function place(
  mode: 'local' | 'remote' | 'auto',
  rates: MeasuredRates,
  directory: ProducerDirectory,
  tokens = 8_000,
  heldTokens = 0,
) {
  return choosePlacement(directory, rates, {
    mode,
    promptTokens: tokens,
    heldTokens,
    geometry,
    chunkTokens: 2_048,
    patienceMs: 1e9,
  });
}

function setUp(options: { local: number; remote: number; queue?: number }) {
  const rates = new MeasuredRates();
  rates.local.learn(0, options.local, 1_000);
  const directory = new ProducerDirectory();
  directory.update(
    producerList(producerEntry({ prefillTokensPerSecond: options.remote, queueLength: options.queue ?? 0 })),
  );
  return { rates, directory };
}

function measured(rates: MeasuredRates, sample: Partial<AttemptSample>): void {
  const nothing = { handshakeMs: null, link: { bytes: 0, milliseconds: 0 }, prefill: null, tooSlow: false };
  rates.of(producerEntry().nodeId).learn({ ...nothing, ...sample });
}

test('a hand-off of the 30-B geometry has 52 KiB a token', () => {
  expect(handoffBytes(geometry, 1_000, 2_048)).toBe(1_000 * 52 * 1_024);
});

test('auto takes the way that is sooner and says why', () => {
  const fast = setUp({ local: 300, remote: 1_300 });
  const remote = place('auto', fast.rates, fast.directory);
  expect(remote.producer?.entry.name).toBe('spark');
  expect(remote.reason).toContain('spark');
  const slow = setUp({ local: 1_300, remote: 300 });
  const local = place('auto', slow.rates, slow.directory);
  expect(local).toMatchObject({ producer: null, fallback: null });
  expect(local.predictedMs.local).toBeLessThan(local.predictedMs.remote ?? 0);
});

test('auto counts the queue and the link', () => {
  const busy = setUp({ local: 300, remote: 1_300, queue: 10 });
  expect(place('auto', busy.rates, busy.directory).producer).toBeNull();
  const slowLink = setUp({ local: 300, remote: 1_300 });
  measured(slowLink.rates, { link: { bytes: 1_000_000, milliseconds: 1_000 } });
  expect(place('auto', slowLink.rates, slowLink.directory).producer).toBeNull();
});

test('auto tries a producer that nobody has measured', () => {
  const { rates, directory } = setUp({ local: 300, remote: 0 });
  expect(place('auto', rates, directory).producer).not.toBeNull();
});

test('what was measured counts more than what a producer says of itself', () => {
  const { rates, directory } = setUp({ local: 300, remote: 5_000 });
  measured(rates, { prefill: { tokens: 100, milliseconds: 1_000 } });
  expect(place('auto', rates, directory).producer).toBeNull();
});

test('remote takes the best producer even when local is sooner', () => {
  const { rates, directory } = setUp({ local: 1_300, remote: 300 });
  expect(place('remote', rates, directory).producer).not.toBeNull();
});

test('remote without a producer is local and says why; auto does so silently', () => {
  const empty = new ProducerDirectory();
  const remote = place('remote', new MeasuredRates(), empty);
  expect(remote.producer).toBeNull();
  expect(remote.fallback?.code).toBe('NO_PRODUCER');
  expect(place('auto', new MeasuredRates(), empty).fallback).toBeNull();
});

test('local asks nobody', () => {
  const { rates, directory } = setUp({ local: 1, remote: 5_000 });
  expect(place('local', rates, directory)).toMatchObject({ producer: null, fallback: null });
});

test('a prompt of one token stays here', () => {
  const { rates, directory } = setUp({ local: 1, remote: 5_000 });
  expect(place('remote', rates, directory, 1)).toMatchObject({ producer: null, fallback: { code: 'INVALID_REQUEST' } });
});

test('a prompt that is held already needs nobody, which is no failure', () => {
  const { rates, directory } = setUp({ local: 1, remote: 5_000 });
  expect(place('remote', rates, directory, 8_000, 7_998).producer?.entry.name).toBe(producerEntry().name);
  expect(place('remote', rates, directory, 8_000, 7_999)).toMatchObject({
    producer: null,
    fallback: null,
    reason: 'All of the prompt but its last token is here already.',
  });
});

test('the prediction grows with tokens, queue and a slower link', () => {
  const rates = new MeasuredRates();
  const ms = (tokens: number, queueLength: number): number =>
    predictRemote(rates, producerEntry({ prefillTokensPerSecond: 1_000, queueLength }), {
      geometry,
      promptTokens: tokens,
      heldTokens: 0,
      chunkTokens: 2_048,
    }).endMs;
  expect(ms(2_000, 0)).toBeGreaterThan(ms(1_000, 0));
  expect(ms(1_000, 1)).toBeGreaterThan(ms(1_000, 0));
});

describe('a producer that was slow', () => {
  /** Local prefill takes 27 s; the producer says of itself that it takes 6 s. */
  function known(now: () => number) {
    const rates = new MeasuredRates(now);
    rates.local.learn(0, 300, 1_000);
    const directory = new ProducerDirectory(now);
    directory.update(producerList(producerEntry({ prefillTokensPerSecond: 1_300, ticketExpiresAtMs: 1e9 })));
    const [producer] = directory.available(1);
    if (producer === undefined) throw new Error('no producer');
    return { rates, directory, producer };
  }
  const slow = { prefill: { tokens: 100, milliseconds: 1_000 }, tooSlow: true };

  test('is believed to be as slow as it was, at once', () => {
    const { rates } = known(() => 0);
    measured(rates, { prefill: { tokens: 5_000, milliseconds: 1_000 } });
    measured(rates, slow);
    expect(rates.of(producerEntry().nodeId).prefillTokensPerSecond).toBe(100);
  });

  test('is left alone by auto for a pause that grows, then tried by one request, then by all if that went well', () => {
    const time = { ms: 0 };
    const { rates, directory, producer } = known(() => time.ms);
    measured(rates, slow);
    producer.pace.begin();
    producer.pace.trip();
    expect(place('auto', rates, directory)).toMatchObject({ producer: null, fallback: null });
    expect(place('auto', rates, directory).reason).toContain('too slow a moment ago');
    // A request that names the way does not mind.
    expect(place('remote', rates, directory).producer).not.toBeNull();
    time.ms = 1_000;
    expect(place('auto', rates, directory).producer).not.toBeNull();
    producer.pace.begin();
    expect(place('auto', rates, directory).producer).toBeNull();
    producer.pace.succeeded();
    measured(rates, { prefill: { tokens: 1_300, milliseconds: 1 } });
    expect(place('auto', rates, directory).producer).not.toBeNull();
  });

  test('is left alone also when its rates are good, as when it was busy with others', () => {
    const { rates, directory, producer } = known(() => 0);
    producer.pace.begin();
    producer.pace.trip();
    expect(place('auto', rates, directory).producer).toBeNull();
    expect(place('remote', rates, directory).producer).not.toBeNull();
  });

  test('is tried again when what was learned of it is old, once', () => {
    const time = { ms: 0 };
    const { rates, directory, producer } = known(() => time.ms);
    const learned = rates.of(producer.entry.nodeId);
    learned.begin();
    measured(rates, { ...slow, tooSlow: false });
    expect(place('auto', rates, directory).producer).toBeNull();
    time.ms = 60_001;
    expect(place('auto', rates, directory).producer).not.toBeNull();
    learned.begin();
    expect(place('auto', rates, directory).producer).toBeNull();
  });
});

test('auto does not begin what it would leave before anything came', () => {
  const { rates, directory } = setUp({ local: 300, remote: 1_300 });
  const request = { mode: 'auto', promptTokens: 4_000, heldTokens: 0, geometry, chunkTokens: 2_048 } as const;
  // A chunk of 2,048 tokens takes 1.6 s there.
  expect(choosePlacement(directory, rates, { ...request, patienceMs: 2_500 }).producer).not.toBeNull();
  const { producer, reason } = choosePlacement(directory, rates, { ...request, patienceMs: 1_500 });
  expect(producer).toBeNull();
  expect(reason).toContain('too late to go back in time');
});

describe('the prediction for a prompt of which a part is held', () => {
  const predict = (heldTokens: number, reusedTokens = 0) =>
    predictRemote(new MeasuredRates(), producerEntry({ prefillTokensPerSecond: 1_000 }), {
      geometry,
      promptTokens: 8_000,
      heldTokens,
      reusedTokens,
      chunkTokens: 2_048,
    });

  test('counts that the producer computes the held rows, too, unless it has them', () => {
    expect(predict(4_000).endMs).toBeCloseTo(predict(0).endMs, 0);
    expect(predict(4_000, 4_000).endMs).toBeLessThan(predict(0).endMs - 3_900);
  });

  test('says when something is gained: after the first chunk', () => {
    expect(predict(0).firstGainMs).toBeLessThan(predict(0).endMs / 2);
    expect(predict(7_000).firstGainMs).toBeLessThanOrEqual(predict(7_000).endMs);
  });
});

describe('the next way', () => {
  const entry = (nodeId: string, prefillTokensPerSecond: number) =>
    producerEntry({ nodeId, name: nodeId, prefillTokensPerSecond });

  function next(mode: 'auto' | 'remote', over: Partial<NextRequest> = {}) {
    const rates = new MeasuredRates(() => 0);
    rates.local.learn(0, 300, 1_000);
    const directory = new ProducerDirectory(() => 0);
    directory.update(producerList(entry('A', 2_000), entry('B', 1_000), entry('C', 100)));
    return chooseNext(directory, rates, {
      mode,
      promptTokens: 8_000,
      heldTokens: 2_048,
      geometry,
      chunkTokens: 512,
      patienceMs: 10_000,
      avoided: new Set(['A']),
      again: null,
      ...over,
    });
  }

  test('is the soonest producer that has not failed', () => {
    expect(next('auto').producer?.entry.nodeId).toBe('B');
    expect(next('auto', { avoided: new Set(['B']) }).producer?.entry.nodeId).toBe('A');
  });

  test('is local in auto when that is sooner, remote in remote as long as there is a producer', () => {
    const avoided = new Set(['A', 'B']);
    expect(next('auto', { avoided }).producer).toBeNull();
    expect(next('remote', { avoided }).producer?.entry.nodeId).toBe('C');
    expect(next('remote', { avoided: new Set(['A', 'B', 'C']) }).producer).toBeNull();
  });

  test('is the same producer when its pause and the rest are sooner than everything else', () => {
    const again = { nodeId: 'A', waitMs: 100 };
    expect(next('auto', { avoided: new Set(), again })).toMatchObject({
      waitMs: 100,
      producer: { entry: { nodeId: 'A' } },
    });
    const long = { nodeId: 'A', waitMs: 9_000 };
    expect(next('auto', { avoided: new Set(), again: long })).toMatchObject({
      waitMs: 0,
      producer: { entry: { nodeId: 'B' } },
    });
  });

  test('is local in auto when nothing would come before the request has to go back', () => {
    expect(next('auto', { patienceMs: 100 }).producer).toBeNull();
  });

  test('is local when only the last token is missing', () => {
    expect(next('remote', { heldTokens: 7_999 }).producer).toBeNull();
  });
});
