// One run of the engine at one depth, in a process of its own: prints its rates as JSON.
import { Engine, GREEDY, loadModel } from '@muser/metal';
import { ENGINE_THREADS, MUSE_NANO } from './machine.js';
import { randomTokens } from './prompts.js';

const [depth = 512, cells = 1024] = process.argv.slice(2).map(Number);
const GENERATED = 160;

const model = await loadModel(MUSE_NANO);
const engine = await Engine.create(model, {
  maxSequences: 1,
  contextTokens: cells,
  chunkTokens: 512,
  flashAttention: true,
  kvType: 'f16',
  threads: ENGINE_THREADS,
});

const tokens = randomTokens(depth, model.info.vocabularySize);
const warm = engine.open(600);
await warm.evaluate(tokens.subarray(0, 512));
await warm.dispose();

const sequence = engine.open(depth + GENERATED + 1);
const started = performance.now();
await sequence.evaluate(tokens);
const prefillSeconds = (performance.now() - started) / 1000;
const result = await sequence.generate({ ...GREEDY, prompt: tokens.slice(0, 1), maxTokens: GENERATED }, () => {});
const decodeSeconds = (result.timings.doneMs - result.timings.firstTokenMs) / 1000;

process.stdout.write(
  JSON.stringify({
    prefillTokensPerSecond: depth / prefillSeconds,
    decodeTokensPerSecond: (result.generatedTokens - 1) / decodeSeconds,
  }),
);
await sequence.dispose();
await engine.close();
model.close();
