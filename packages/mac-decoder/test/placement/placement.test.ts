import { expect, test } from 'vitest';
import type { Geometry } from '@muser/protocol';
import { choosePlacement } from '../../src/placement/choose.js';
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

function place(mode: 'local' | 'remote' | 'auto', rates: MeasuredRates, directory: ProducerDirectory, tokens = 8_000) {
  return choosePlacement(directory, rates, {
    mode,
    promptTokens: tokens,
    heldTokens: 0,
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
