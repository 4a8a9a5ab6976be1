import { chmod, mkdir, mkdtemp, readFile, readdir, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterEach, beforeEach, describe, expect, it } from 'vitest';

import { ensurePrivateFolder, writeFileAtomic } from '../src/index.js';

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'muser-files-'));
});
afterEach(() => rm(folder, { recursive: true }));
const modeOf = async (path: string): Promise<number> => (await stat(path)).mode & 0o777;

describe('writeFileAtomic', () => {
  it('creates and replaces a file, leaves nothing else, and sets its mode whatever the old one was', async () => {
    const path = join(folder, 'a');
    await writeFileAtomic(path, 'one');
    expect(await modeOf(path)).toBe(0o600);
    await chmod(path, 0o666);
    await writeFileAtomic(path, 'two', 0o640);
    expect(await readFile(path, 'utf8')).toBe('two');
    expect(await modeOf(path)).toBe(0o640);
    expect(await readdir(folder)).toEqual(['a']);
  });

  it('leaves the old state and no temporary file when it fails', async () => {
    const path = join(folder, 'a');
    await mkdir(join(path, 'inner'), { recursive: true });
    await expect(writeFileAtomic(path, 'x')).rejects.toThrow();
    expect(await readdir(folder)).toEqual(['a']);
    expect(await readdir(path)).toEqual(['inner']);
  });
});

describe('ensurePrivateFolder', () => {
  it('makes the folder and those above it for their owner alone, and closes an open one', async () => {
    const path = join(folder, 'b', 'c');
    await ensurePrivateFolder(path);
    expect(await modeOf(path)).toBe(0o700);
    await chmod(path, 0o755);
    await ensurePrivateFolder(path);
    expect(await modeOf(path)).toBe(0o700);
  });

  it('names the folder that cannot be made', async () => {
    await writeFile(join(folder, 'file'), '');
    const path = join(folder, 'file', 'sub');
    await expect(ensurePrivateFolder(path)).rejects.toMatchObject({
      code: 'UNAVAILABLE',
      message: expect.stringContaining(path) as string,
    });
  });
});
