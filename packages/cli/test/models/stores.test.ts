import { statSync } from 'node:fs';
import { mkdir, mkdtemp, readdir, readFile, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { PullOptions } from '../../src/models/pull.js';
import { storeFolders, type StoreFolders } from '../../src/models/stores.js';
import { manifestOf, noise, sha256, temporaryFolder, testPull } from '../support/models.js';

const WEIGHTS = noise(200_000);
const manifest = manifestOf({ 'weights.bin': WEIGHTS });
/** Nothing listens there: a pull that succeeds has downloaded nothing. */
const NOWHERE = 'http://127.0.0.1:1';

let folder: { path: string; remove: () => Promise<void> };
let stores: StoreFolders;
let to: string;
beforeEach(async () => {
  folder = await temporaryFolder();
  stores = storeFolders({ HOME: folder.path });
  // Those of the machine that the test runs on are none of its business.
  stores.ollama = stores.ollama.filter((path) => path.startsWith(folder.path));
  to = join(folder.path, 'to');
});
afterEach(() => folder.remove());

async function put(path: string, bytes: Buffer): Promise<string> {
  const full = join(folder.path, path);
  await mkdir(dirname(full), { recursive: true });
  await writeFile(full, bytes);
  return full;
}

async function pulled(options: Partial<PullOptions> = {}) {
  const { files, bytes } = await testPull(NOWHERE, { manifest, folder: to, found: stores, ...options });
  expect(bytes).toBe(WEIGHTS.length);
  expect(WEIGHTS.equals(await readFile(join(to, 'weights.bin')))).toBe(true);
  return files.map(({ from }) => from);
}

/** Linux keeps a file system in memory at this path. */
const otherFileSystem = isOther('/dev/shm') ? '/dev/shm' : null;
function isOther(path: string): boolean {
  const found = statSync(path, { throwIfNoEntry: false });
  return found !== undefined && found.dev !== statSync(tmpdir()).dev;
}

const HUB = '.cache/huggingface/hub/models--owner--other/blobs';

describe('a file that another program has', () => {
  const places: [string, string, string][] = [
    ['huggingface', `${HUB}/${sha256(WEIGHTS)}`, 'huggingface'],
    ['ollama', `.ollama/models/blobs/sha256-${sha256(WEIGHTS)}`, 'ollama'],
    ['lmstudio', '.lmstudio/models/owner/name/any-name.gguf', 'lmstudio'],
    ['lmstudio', '.cache/lm-studio/models/owner/name/any-name.gguf', 'lmstudio'],
  ];
  it.each(places)('(%s at %s) is used and not downloaded', async (_, path, from) => {
    await put(path, WEIGHTS);
    expect(await pulled()).toEqual([from]);
  });

  it('costs no second copy on the disk where files can be linked', async () => {
    const origin = await put(`${HUB}/${sha256(WEIGHTS)}`, WEIGHTS);
    await pulled();
    const [before, after] = [await stat(origin), await stat(join(to, 'weights.bin'))];
    // A clone has an inode of its own and shares the blocks; where clones do not exist the file is linked.
    if (before.ino !== after.ino) expect(before.nlink).toBe(1);
    else expect(after.nlink).toBe(2);
  });

  it('is never believed: a name that lies is passed over', async () => {
    await put(`${HUB}/${sha256(WEIGHTS)}`, noise(WEIGHTS.length));
    await put(`.ollama/models/blobs/sha256-${sha256(WEIGHTS)}`, noise(WEIGHTS.length - 1));
    await put('.lmstudio/models/a/b/c.gguf', WEIGHTS);
    expect(await pulled()).toEqual(['lmstudio']);
  });

  it('is found through a link, as some caches have them', async () => {
    const origin = await put('elsewhere/file', WEIGHTS);
    const blob = join(folder.path, `.ollama/models/blobs/sha256-${sha256(WEIGHTS)}`);
    await mkdir(dirname(blob), { recursive: true });
    await symlink(origin, blob);
    expect(await pulled()).toEqual(['ollama']);
  });

  it.skipIf(otherFileSystem === null)('is copied, and still checked, from another file system', async () => {
    const cache = await mkdtemp(join(otherFileSystem ?? '', 'muser-cache-'));
    try {
      const blobs = join(cache, 'models--a--b', 'blobs');
      await mkdir(blobs, { recursive: true });
      stores.huggingface = [cache];
      await writeFile(join(blobs, sha256(WEIGHTS)), noise(WEIGHTS.length));
      await expect(pulled()).rejects.toMatchObject({ code: 'PEER_UNREACHABLE' });
      expect(await readdir(join(to, '.muser'))).toEqual([]);
      await writeFile(join(blobs, sha256(WEIGHTS)), WEIGHTS);
      expect(await pulled()).toEqual(['huggingface']);
    } finally {
      await rm(cache, { recursive: true });
    }
  });

  it('only means a download when the store cannot be read', async () => {
    await put('.lmstudio/models', Buffer.from('a file where a folder should be'));
    await expect(pulled()).rejects.toMatchObject({ code: 'PEER_UNREACHABLE' });
  });

  it('is looked for where the environment says', () => {
    expect(storeFolders({ HOME: '/h', HF_HOME: '/hf', OLLAMA_MODELS: '/o' })).toMatchObject({
      huggingface: ['/hf/hub'],
      ollama: ['/o', expect.any(String)],
    });
    expect(storeFolders({ HOME: '/h', HF_HUB_CACHE: '/c' }).huggingface).toEqual(['/c']);
  });
});

describe('a folder as the source', () => {
  const source = () => ({ type: 'folder' as const, folder: join(folder.path, 'from') });

  it('gives its files', async () => {
    await put('from/weights.bin', WEIGHTS);
    expect(await pulled({ source: source() })).toEqual(['folder']);
  });

  const bad: [string, Buffer | null, string][] = [
    ['with another digest', noise(WEIGHTS.length), 'DIGEST_MISMATCH'],
    ['of another size', noise(5), 'DIGEST_MISMATCH'],
    ['that is not there', null, 'NOT_FOUND'],
  ];
  it.each(bad)('does not give a file %s', async (_, bytes, code) => {
    await mkdir(join(folder.path, 'from'));
    if (bytes !== null) await put('from/weights.bin', bytes);
    await expect(pulled({ source: source() })).rejects.toMatchObject({ code });
    await expect(stat(join(to, 'weights.bin'))).rejects.toMatchObject({ code: 'ENOENT' });
  });

  it('that does not exist is an error of usage', async () => {
    await expect(pulled({ source: source() })).rejects.toMatchObject({ exitCode: 2 });
  });
});
