import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { chmod, lstat, mkdir, mkdtemp, readFile, readdir, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';

import { afterEach, beforeEach, describe, expect, it } from 'vitest';

import {
  createFileOnce,
  ensurePrivateFolder,
  prepareResultFile,
  readPrivateFile,
  readSmallFile,
  writeFileAtomic,
} from '../src/index.js';

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

describe('createFileOnce', () => {
  it('makes a file for its owner alone; of several at once, one', async () => {
    const path = join(folder, 'a');
    const made = await Promise.all(['1', '2', '3', '4'].map((text) => createFileOnce(path, text)));
    expect(made.filter(Boolean)).toHaveLength(1);
    expect(await readFile(path, 'utf8')).toBe(String(made.indexOf(true) + 1));
    expect(await modeOf(path)).toBe(0o600);
    expect(await readdir(folder)).toEqual(['a']);
  });

  it('fails for another reason than a file that exists', async () => {
    await expect(createFileOnce(join(folder, 'none', 'a'), 'x')).rejects.toMatchObject({ code: 'ENOENT' });
  });
});

describe('readPrivateFile', () => {
  it('reads what only its owner can read, and knows what does not exist', async () => {
    const path = join(folder, 'secret');
    expect(await readPrivateFile(path)).toBeNull();
    await writeFileAtomic(path, 'text');
    expect(await readPrivateFile(path)).toBe('text');
  });

  it.each([
    ['secret', 0o640, 'run chmod 600'],
    ['secret', 0o604, 'run chmod 600'],
    ['.', 0o755, 'run chmod 700'],
  ])('refuses %s with mode %o', async (name, mode, advice) => {
    const path = join(folder, 'secret');
    await writeFileAtomic(path, 'text');
    await chmod(join(folder, name), mode);
    const refusal = { code: 'CONFIG_INVALID', message: expect.stringContaining(advice) as string };
    await expect(readPrivateFile(path)).rejects.toMatchObject(refusal);
  });

  it('follows no link and reads no large file', async () => {
    const path = join(folder, 'secret');
    await writeFileAtomic(path, 'x'.repeat(64 * 1024 + 1));
    await expect(readPrivateFile(path)).rejects.toMatchObject({ code: 'CONFIG_INVALID' });
    await writeFileAtomic(path, 'text');
    await symlink(path, join(folder, 'link'));
    await expect(readPrivateFile(join(folder, 'link'))).rejects.toMatchObject({ code: 'CONFIG_INVALID' });
  });
});

describe('readSmallFile', () => {
  it('reads up to the limit and not a byte more, and knows what does not exist', async () => {
    const path = join(folder, 'small');
    expect(await readSmallFile(path, 10)).toBeNull();
    const text = 'ä'.repeat(100_000);
    await writeFile(path, text);
    expect(await readSmallFile(path, 200_000)).toBe(text);
    await expect(readSmallFile(path, 199_999)).rejects.toMatchObject({ code: 'MESSAGE_TOO_LARGE' });
  });

  it('does not believe a size of 0, and does not wait for a pipe', async () => {
    const refused = { code: 'CONFIG_INVALID', message: expect.stringContaining('regular file') as string };
    const pipe = join(folder, 'pipe');
    execFileSync('mkfifo', [pipe]);
    for (const path of ['/dev/zero', pipe, folder]) {
      await expect(readSmallFile(path, 10)).rejects.toMatchObject(refused);
      await expect(readPrivateFile(path)).rejects.toMatchObject({ code: 'CONFIG_INVALID' });
    }
    if (existsSync('/proc/self/maps')) {
      await expect(readSmallFile('/proc/self/maps', 10)).rejects.toMatchObject({ code: 'MESSAGE_TOO_LARGE' });
    }
  });
});

describe('prepareResultFile', () => {
  const kind = { what: 'a result', maxBytes: 10, isEarlier: (text: string): boolean => text === 'earlier' };

  it('makes the folder, leaves nothing in it, and lets an earlier result be replaced', async () => {
    const path = join(folder, 'b', 'c', 'result');
    await prepareResultFile(path, kind);
    expect(await readdir(dirname(path))).toEqual([]);
    await writeFile(path, 'earlier');
    await prepareResultFile(path, kind);
    expect(await readFile(path, 'utf8')).toBe('earlier');
  });

  it("refuses what is somebody else's, and leaves it as it is", async () => {
    const [earlier, link, pipe, other, long, empty] = ['earlier', 'link', 'pipe', 'other', 'long', 'empty'].map(
      (name) => join(folder, name),
    ) as [string, string, string, string, string, string];
    await writeFile(earlier, 'earlier');
    await symlink(earlier, link);
    execFileSync('mkfifo', [pipe]);
    await writeFile(other, 'other');
    await writeFile(long, 'x'.repeat(11));
    await writeFile(empty, '');
    const before = await readdir(folder);
    for (const path of [link, pipe, folder, other, long, empty, join(other, 'below'), '']) {
      await expect(prepareResultFile(path, kind), path).rejects.toMatchObject({ code: 'CONFIG_INVALID' });
    }
    expect(await readdir(folder)).toEqual(before);
    expect((await lstat(link)).isSymbolicLink()).toBe(true);
  });

  it.runIf(existsSync('/proc/self'))('gives up where nothing can be made', async () => {
    for (const path of ['/proc/muser/result', '/proc/muser']) {
      await expect(prepareResultFile(path, kind)).rejects.toMatchObject({ code: 'CONFIG_INVALID' });
    }
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

  it.runIf(existsSync('/proc/self'))('gives up where no folder can be made', async () => {
    await expect(ensurePrivateFolder('/proc/muser/state')).rejects.toMatchObject({ code: 'UNAVAILABLE' });
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
