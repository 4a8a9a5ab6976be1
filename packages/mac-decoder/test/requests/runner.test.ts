import { EngineError, type EngineErrorCode } from '@muser/metal';
import { MuserError } from '@muser/protocol';
import { createLogger } from '@muser/service-kit';
import { expect, test } from 'vitest';
import type { DecoderEngine } from '../../src/engine/decoder-engine.js';
import { SequenceLease, type LeaseParts } from '../../src/engine/sequence-lease.js';
import { MeasuredRates } from '../../src/placement/rates.js';
import { ProducerDirectory } from '../../src/producers/directory.js';
import { KvSamples } from '../../src/requests/kv-samples.js';
import { RequestRunner } from '../../src/requests/runner.js';
import { Timeline } from '../../src/requests/timeline.js';

/** Whether a prompt's rows are kept when its client leaves and the engine ends like this; no real one fails when told to. */
async function keptAfter(code: EngineErrorCode): Promise<boolean> {
  const client = new AbortController();
  let kept: boolean | null = null;
  const sequence = {
    position: 0,
    generate: () => {
      client.abort(new MuserError('CANCELLED', 'The client closed the connection.'));
      return Promise.reject(new EngineError(code, 'as the test wants it'));
    },
  };
  const parts = {
    sequence,
    origins: { producerIds: [] },
    giveBack: (_last: unknown, keep: boolean) => {
      kept = keep;
      return Promise.resolve();
    },
  };
  const lease = new SequenceLease(parts as unknown as LeaseParts);
  const engine = { load: () => ({ waiting: 0 }), admit: () => Promise.resolve(lease), endTokens: [], chunkTokens: 32 };
  const logger = createLogger('decoder', 'silent');
  const runner = new RequestRunner({
    engine: engine as unknown as DecoderEngine,
    directory: new ProducerDirectory(),
    connections: null,
    rates: new MeasuredRates(),
    samples: new KvSamples({ share: 0, logger }),
    transferDeadlineMs: 1_000,
    stallTimeoutMs: 1_000,
    logger,
  });
  const request = {
    id: 'test',
    tokens: Uint32Array.from([1, 2, 3]),
    maxTokens: 1,
    mode: 'local',
    sampling: {},
    stopStrings: [],
    timeline: new Timeline(),
  } as unknown as Parameters<RequestRunner['run']>[0];
  const sink = { text: () => undefined, progress: () => undefined };
  await expect(runner.run(request, sink, client.signal)).rejects.toMatchObject({ code: 'CANCELLED' });
  return kept ?? expect.fail('the sequence was not given back');
}

test('the rows of a request whose client left are kept, but never those of an engine that failed', async () => {
  expect(await keptAfter('CANCELLED')).toBe(true);
  expect(await keptAfter('ENGINE_FAILED')).toBe(false);
});
