// Decodes what check_gpu.py exported: vLLM's rows into llama.cpp's cache, the last token, the answer.
// usage: node bench/gpu/decode_exported.mjs FOLDER [GGUF]
import { readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Engine, GREEDY, loadModel } from '@muser/metal';

const [folder, gguf = fileURLToPath(new URL('../../models/muse-nano/muse-nano-q8_0.gguf', import.meta.url))] =
  process.argv.slice(2);
if (folder === undefined) {
  process.stderr.write('usage: decode_exported.mjs FOLDER [GGUF]\n');
  process.exit(2);
}

const ANSWER_TOKENS = 32;

const model = await loadModel(gguf);
const engine = await Engine.create(model, {
  maxSequences: 1,
  contextTokens: 16_384,
  chunkTokens: 512,
  flashAttention: true,
  kvType: 'f16',
  threads: 1,
});

const results = [];
for (const file of readdirSync(folder).filter((name) => /^kv-.*\.json$/.test(name))) {
  const { geometry, wireType, prompts } = JSON.parse(readFileSync(join(folder, file), 'utf8'));
  const data = readFileSync(join(folder, file.replace(/json$/, 'bin')));
  for (const prompt of prompts) {
    const { answer, logits } = await decode(prompt, wireType, geometry, data);
    const local = await decodeLocally(prompt);
    results.push({
      export: file.slice('kv-'.length, -'.json'.length),
      prompt: prompt.name,
      answer,
      right: answer.includes(prompt.expected),
      sameAsLocal: answer === local.answer,
      greatestLogitDifference: Number(greatestDifference(logits, local.logits).toFixed(3)),
    });
  }
}
await engine.close();
model.close();
process.stdout.write(`${JSON.stringify({ gguf: gguf.split('/').at(-1), results }, null, 1)}\n`);
process.exitCode = results.length > 0 && results.every((result) => result.right) ? 0 : 1;

/** From vLLM's rows: all but the last token's are installed, none is computed here. */
async function decode(prompt, wireType, geometry, data) {
  const rows = prompt.tokens.length - 1;
  const windowStart = Math.max(0, rows - geometry.windowTokens);
  const sequence = engine.open(prompt.tokens.length + ANSWER_TOKENS);
  const stage = sequence.stage(0, rows, windowStart);
  for (const { layer, kind, start, count, offset } of prompt.parts) {
    const size = count * geometry.kvHeads * geometry.headDimension * 2;
    stage.put(layer, kind, start, count, wireType, data.subarray(offset, offset + size));
  }
  await sequence.install(stage);
  stage.dispose();
  return await answerOf(sequence, prompt.tokens.slice(-1));
}

async function decodeLocally(prompt) {
  return await answerOf(engine.open(prompt.tokens.length + ANSWER_TOKENS), prompt.tokens);
}

/** The logits after the prompt's last token, and the greedy answer. Disposes the sequence. */
async function answerOf(sequence, prompt) {
  const stopTokens = [model.info.eotToken ?? model.info.eosToken].filter((token) => token !== null);
  const generate = async (tokens, maxTokens) => {
    let text = '';
    const options = { ...GREEDY, prompt: Int32Array.from(tokens), maxTokens, stopTokens };
    const chunks = [];
    await sequence.generate(options, (output) => {
      text += output.text;
      chunks.push(...output.tokens);
    });
    return { text, tokens: chunks };
  };
  try {
    const first = await generate(prompt, 1);
    const logits = sequence.lastLogits();
    const rest = first.tokens.length > 0 ? await generate(first.tokens, ANSWER_TOKENS - 1) : { text: '' };
    return { answer: (first.text + rest.text).trim(), logits };
  } finally {
    await sequence.dispose();
  }
}

function greatestDifference(a, b) {
  let greatest = 0;
  for (let i = 0; i < a.length; i++) greatest = Math.max(greatest, Math.abs(a[i] - b[i]));
  return greatest;
}
