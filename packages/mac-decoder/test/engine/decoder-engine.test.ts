import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { TinyModel, type TinyModelOptions } from '@muser/testing';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { DecoderEngine, type DecoderEngineOptions } from '../../src/engine/decoder-engine.js';

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'muser-engine-'));
});
afterAll(() => rm(folder, { recursive: true }));

const signal = new AbortController().signal;
const OPTIONS: Omit<DecoderEngineOptions, 'model'> = {
  modelDigest: new Uint8Array(32),
  maxSequences: 1,
  contextTokens: 256,
  chunkTokens: 64,
  flashAttention: false,
  kvType: 'f16',
  threads: 1,
  keptTokens: null,
  queueLimit: 1,
  queueDeadlineMs: 10_000,
};

let files = 0;
async function start(model: TinyModelOptions): Promise<DecoderEngine> {
  files += 1;
  const path = join(folder, `${files}.gguf`);
  await writeFile(path, new TinyModel(model).gguf());
  return DecoderEngine.start({ ...OPTIONS, model: path }, signal);
}

describe('DecoderEngine', () => {
  it('shows a model whose rows can be handed over by a fingerprint of its own', async () => {
    const [one, other] = [await start({ architecture: 'llama' }), await start({ architecture: 'llama', kvHeads: 1 })];
    expect(one.identity.fingerprint).not.toEqual(other.identity.fingerprint);
    expect(one.identity.fingerprint.some((byte) => byte !== 0)).toBe(true);
    await Promise.all([one.close(), other.close()]);
  });

  it('shows no producer a fingerprint that fits when rows cannot be handed over, and decodes all the same', async () => {
    const engine = await start({
      architecture: 'qwen3',
      metadata: { 'rope.scaling.type': 'linear', 'rope.scaling.factor': { f32: 2 } },
    });
    expect(engine.model.info.localOnly).not.toBeNull();
    expect(engine.identity.fingerprint).toEqual(new Uint8Array(32));
    const lease = await engine.admit({ prompt: new Uint32Array(0), reserveTokens: 32 }, signal);
    await lease.sequence.evaluate(Uint32Array.from({ length: 20 }, (_, token) => token));
    expect(await lease.rewind(7)).toBe(7);
    await lease.release();
    await engine.close();
  });

  it('refuses a quantized cache without flash attention before it loads anything', async () => {
    const options: DecoderEngineOptions = { ...OPTIONS, kvType: 'q8_0', model: '/nonexistent' };
    await expect(DecoderEngine.start(options, signal)).rejects.toMatchObject({ code: 'CONFIG_INVALID' });
  });
});
