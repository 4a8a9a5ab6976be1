import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { generate, MODEL_PATH, needlePrompt, textTokens, withEngine } from './support.js';

const MAX_TOKENS = 24;
const CHUNK = 512;

/** In a process of its own, because its addon and ours would share llama.cpp's global log and backends. */
function greedyOfNodeLlamaCpp(prompts: Int32Array[]): number[][] {
  const input = {
    modelPath: MODEL_PATH,
    chunkTokens: CHUNK,
    maxTokens: MAX_TOKENS,
    prompts: prompts.map((prompt) => [...prompt]),
  };
  const main = fileURLToPath(new URL('./fixtures/node-llama-cpp-greedy.mjs', import.meta.url));
  const { status, stdout, stderr } = spawnSync(process.execPath, [main], {
    input: JSON.stringify(input),
    encoding: 'utf8',
    timeout: 200_000,
  });
  if (status !== 0) throw new Error(`node-llama-cpp failed: ${stderr}`);
  return JSON.parse(stdout) as number[][];
}

describe('an oracle', () => {
  it('node-llama-cpp gives the same greedy tokens', { timeout: 300_000 }, async () => {
    const prompts = [
      ...(await Promise.all([2, 513, 1537].map((length) => textTokens(length, length)))),
      (await needlePrompt(3, 900)).tokens,
    ];
    const expected = greedyOfNodeLlamaCpp(prompts);
    await withEngine({ chunkTokens: CHUNK }, async (engine) => {
      for (const [i, prompt] of prompts.entries()) {
        const wanted = expected[i] ?? [];
        const sequence = engine.open(prompt.length + MAX_TOKENS);
        // It ends at an end-of-generation token; we go on until the same number of tokens.
        const { tokens } = await generate(sequence, { prompt, maxTokens: Math.max(1, wanted.length), stopTokens: [] });
        expect(tokens, `${prompt.length} tokens`).toEqual(wanted);
        await sequence.dispose();
      }
    });
  });
});
