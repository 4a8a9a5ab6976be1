import { mkdir, mkdtemp, realpath, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { findCheckpoint } from '../src/system/checkpoint.js';

const REPOSITORY = 'RedHatAI/Muse-Glimmer-30B-NVFP4';
const NAME = 'muse-glimmer-30b-nvfp4';
const COMMIT = '0123456789abcdef0123456789abcdef01234567';

let folder: string;
let env: NodeJS.ProcessEnv;
beforeEach(async () => {
  folder = await realpath(await mkdtemp(join(tmpdir(), 'muser-checkpoint-')));
  env = { HOME: folder, MUSER_MODELS: join(folder, 'models'), HF_HUB_CACHE: join(folder, 'hub') };
});
afterEach(() => rm(folder, { recursive: true }));

async function put(path: string, text: string): Promise<string> {
  const file = join(folder, path);
  await mkdir(dirname(file), { recursive: true });
  await writeFile(file, text);
  return dirname(file);
}

/** What `muser models pin` writes. */
async function pinned(configPath = 'config.json'): Promise<void> {
  const manifest = {
    schema: 1,
    name: NAME,
    source: { type: 'hub', repository: REPOSITORY, revision: COMMIT },
    files: [{ path: configPath, size: 2, sha256: '0'.repeat(64) }],
  };
  await put(`models/manifests/${NAME}.json`, JSON.stringify(manifest));
}

/** What `muser models pull` leaves. */
async function pulled(configPath = 'config.json'): Promise<string> {
  await put(`models/${NAME}/.muser/manifest.json`, '{}');
  return put(`models/${NAME}/${configPath}`, '{}');
}

describe('the checkpoint that vLLM loads', () => {
  it('is a folder', async () => {
    const checkpoint = await put('own/config.json', '{}');
    expect(await findCheckpoint(checkpoint, env)).toBe(checkpoint);
  });

  it.each([REPOSITORY, REPOSITORY.toLowerCase(), NAME])('is the pulled model that is called %s', async (what) => {
    await pinned();
    const checkpoint = await pulled();
    expect(await findCheckpoint(what, env)).toBe(checkpoint);
  });

  it('is the folder of config.json within a model', async () => {
    await pinned('hf/config.json');
    const checkpoint = await pulled('hf/config.json');
    expect(await findCheckpoint(REPOSITORY, env)).toBe(checkpoint);
  });

  it('is muse-nano of the checkout', async () => {
    const checkpoint = fileURLToPath(new URL('../../../models/muse-nano/hf', import.meta.url));
    expect(await findCheckpoint('muse-nano', env)).toBe(checkpoint);
  });

  it('is what the Hugging Face cache has of main, when there is no manifest of it', async () => {
    const cache = `hub/models--${REPOSITORY.replace('/', '--')}`;
    await put(`${cache}/refs/main`, COMMIT);
    await put(`${cache}/snapshots/${'f'.repeat(40)}/config.json`, '{}');
    const checkpoint = await put(`${cache}/snapshots/${COMMIT}/config.json`, '{}');
    expect(await findCheckpoint(REPOSITORY, env)).toBe(checkpoint);
    // With a manifest only what matches it is loaded.
    await pinned();
    await expect(findCheckpoint(REPOSITORY, env)).rejects.toMatchObject({
      code: 'MODEL_LOAD_FAILED',
      advice: expect.stringContaining(`muser models pull ${NAME}`) as string,
    });
  });

  it('that is not here is named with the commands that fetch it', async () => {
    await expect(findCheckpoint(REPOSITORY, env)).rejects.toMatchObject({
      exitCode: 2,
      code: 'MODEL_LOAD_FAILED',
      message: `${REPOSITORY} is not on this machine`,
      advice: `Fetch it with: muser models pin ${REPOSITORY}@main && muser models pull ${NAME}`,
    });
  });

  it.each(['/nowhere/at/all', './nothing', '../RedHatAI/x', 'a/b/c'])('%s is refused as a folder', async (what) => {
    await expect(findCheckpoint(what, env)).rejects.toMatchObject({ message: `there is no folder ${what}` });
  });

  it('is refused without a config.json', async () => {
    await put('empty/weights.txt', '');
    await expect(findCheckpoint(join(folder, 'empty'), env)).rejects.toMatchObject({
      message: expect.stringContaining('no config.json') as string,
    });
  });

  it('never follows a commit that is none', async () => {
    const cache = `hub/models--${REPOSITORY.replace('/', '--')}`;
    await put(`${cache}/refs/main`, '../../../own');
    await put('own/config.json', '{}');
    await expect(findCheckpoint(REPOSITORY, env)).rejects.toMatchObject({ code: 'MODEL_LOAD_FAILED' });
  });
});
