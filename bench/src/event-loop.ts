import { monitorEventLoopDelay } from 'node:perf_hooks';
import { Engine, loadModel } from '@muser/metal';
import { ENGINE_THREADS, MUSE_NANO } from './machine.js';
import { randomTokens } from './prompts.js';
import { figure } from './statistics.js';

const TOKENS = 16_000;

/** How late JavaScript's event loop runs while the engine prefills 16,000 tokens beside it. */
export async function eventLoopBenchmark(): Promise<object> {
  const model = await loadModel(MUSE_NANO);
  const engine = await Engine.create(model, {
    maxSequences: 1,
    contextTokens: TOKENS + 512,
    chunkTokens: 512,
    flashAttention: true,
    kvType: 'f16',
    threads: ENGINE_THREADS,
  });
  const sequence = engine.open(TOKENS);
  const delay = monitorEventLoopDelay({ resolution: 1 });
  delay.enable();
  await sequence.evaluate(randomTokens(TOKENS, model.info.vocabularySize), { onProgress: () => {} });
  delay.disable();
  await sequence.dispose();
  await engine.close();
  model.close();
  const milliseconds = (nanoseconds: number) => figure(nanoseconds / 1e6);
  return {
    promptTokens: TOKENS,
    p50Ms: milliseconds(delay.percentile(50)),
    p99Ms: milliseconds(delay.percentile(99)),
    maxMs: milliseconds(delay.max),
    goalP99Ms: 20,
  };
}
