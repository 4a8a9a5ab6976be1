import { createHash } from 'node:crypto';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterEach, beforeEach, describe, expect, it } from 'vitest';

import { checkpointDigest } from '../src/backend/checkpoint.js';

const sha256 = (text: string): string => createHash('sha256').update(text).digest('hex');

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'muser-checkpoint-'));
  await writeFile(join(folder, 'config.json'), '{}');
});
afterEach(() => rm(folder, { recursive: true }));

const digest = async (): Promise<string> => Buffer.from(await checkpointDigest(folder, folder)).toString('hex');

describe('the digest of a checkpoint', () => {
  it('is that of the list of its weights, as sha256sum prints it', async () => {
    await writeFile(join(folder, 'model-2.safetensors'), 'two');
    await writeFile(join(folder, 'model-1.safetensors'), 'one');
    await writeFile(join(folder, 'pytorch_model.bin'), 'not loaded');
    const list = `${sha256('one')}  model-1.safetensors\n${sha256('two')}  model-2.safetensors\n`;
    expect(await digest()).toBe(sha256(list));
  });

  it('changes with a name and with a byte', async () => {
    await writeFile(join(folder, 'a.safetensors'), 'weights');
    const first = await digest();
    await rm(join(folder, 'a.safetensors'));
    await writeFile(join(folder, 'b.safetensors'), 'weights');
    const renamed = await digest();
    await writeFile(join(folder, 'b.safetensors'), 'weightz!');
    expect(new Set([first, renamed, await digest()]).size).toBe(3);
  });

  it('needs weights, a configuration, a folder', async () => {
    await expect(digest()).rejects.toMatchObject({ code: 'MODEL_LOAD_FAILED' });
    await writeFile(join(folder, 'a.safetensors'), 'weights');
    await rm(join(folder, 'config.json'));
    await expect(digest()).rejects.toMatchObject({ code: 'MODEL_LOAD_FAILED' });
    await expect(checkpointDigest(join(folder, 'a.safetensors'), folder)).rejects.toMatchObject({
      code: 'MODEL_LOAD_FAILED',
    });
  });
});
