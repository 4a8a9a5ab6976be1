import { spawnSync } from 'node:child_process';
import { describe, expect, it } from 'vitest';
import { MODEL_PATH } from './support.js';

const REQUESTS = 200;
const WARM_UP = 60;

describe('memory', () => {
  // fault: memory-outside-heap
  it(`stays flat over ${REQUESTS} requests`, { timeout: 240_000 }, () => {
    // A process of its own: the test runner's memory would drown the numbers.
    const script = `
      import { loadModel, Engine } from '@muser/metal';
      const model = await loadModel(${JSON.stringify(MODEL_PATH)});
      const { layers } = model.info.geometry;
      const engine = await Engine.create(model, { maxSequences: 3, contextTokens: 2048, chunkTokens: 64, flashAttention: true, kvType: 'f16', threads: 1 });
      const tokens = Int32Array.from({ length: 128 }, (_, i) => 100 + (i * 37) % 3000);
      const greedy = { maxTokens: 8, temperature: 0.8, topK: 20, topP: 0.9, minP: 0.01, repeatPenalty: 1.1, frequencyPenalty: 0,
        presencePenalty: 0, penaltyLastN: 8, seed: 1, logitBias: [[5, -1]], stopTokens: [], stopStrings: ['never seen'] };
      const bytes = new Uint8Array(128 * 256);
      const sizes = [];
      for (let request = 0; request < ${REQUESTS}; request++) {
        const source = engine.open(300);
        await source.evaluate(tokens);
        const view = await source.exportRange(0, 128, { windowStart: 0 });
        const target = engine.open(300);
        const stage = target.stage(0, 128, 0);
        for (let layer = 0; layer < layers.length; layer++) for (const kind of ['k', 'v']) {
          view.read(layer, kind, 0, 128, bytes, 0);
          stage.put(layer, kind, 0, 128, 'f16', bytes);
        }
        await target.install(stage);
        // One in three handles is left to the garbage collector.
        if (request % 3) view.dispose();
        const fork = await target.fork(300);
        const controller = new AbortController();
        await Promise.all([
          target.generate({ ...greedy, prompt: tokens.subarray(0, 3) }, () => {}),
          fork.generate({ ...greedy, prompt: tokens.subarray(0, 2), signal: controller.signal }, () => controller.abort()).catch(() => {}),
        ]);
        await Promise.all([source.dispose(), target.dispose(), fork.dispose()]);
        if (request % 10 === 9) { gc(); await new Promise((resolve) => setImmediate(resolve)); sizes.push(process.memoryUsage.rss()); }
      }
      await engine.close();
      console.log(JSON.stringify(sizes));`;
    const { status, stdout, stderr } = spawnSync(
      process.execPath,
      ['--expose-gc', '--input-type=module', '-e', script],
      { cwd: import.meta.dirname, encoding: 'utf8', timeout: 200_000 },
    );
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
    const sizes = (JSON.parse(stdout) as number[]).slice(WARM_UP / 10);
    const [first, last] = [average(sizes.slice(0, 4)), average(sizes.slice(-4))];
    expect(last / first, sizes.join()).toBeLessThan(1.05);
  });
});

function average(values: number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}
