import { createHash } from 'node:crypto';
import { mkdtemp, readFile, rm, utimes, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterEach, beforeEach, expect, test } from 'vitest';

import { fileDigest } from '../src/index.js';

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'muser-digest-'));
});
afterEach(() => rm(folder, { recursive: true, force: true }));

const sha256 = (text: string): string => createHash('sha256').update(text).digest('hex');
const hex = (bytes: Uint8Array): string => Buffer.from(bytes).toString('hex');

test('gives the SHA-256 of the file and remembers it', async () => {
  const path = join(folder, 'weights');
  const cache = join(folder, 'cache');
  await writeFile(path, 'first');
  expect(hex(await fileDigest(path, cache))).toBe(sha256('first'));

  // A cached value is used as it is while the file looks the same.
  const cachePath = join(cache, 'file-digests.json');
  const marked = (await readFile(cachePath, 'utf8')).replace(sha256('first'), sha256('marked'));
  await writeFile(cachePath, marked);
  expect(hex(await fileDigest(path, cache))).toBe(sha256('marked'));
});

test('hashes again when size or time changed', async () => {
  const path = join(folder, 'weights');
  await writeFile(path, 'first');
  await fileDigest(path, folder);
  await writeFile(path, 'longer than before');
  expect(hex(await fileDigest(path, folder))).toBe(sha256('longer than before'));
  await writeFile(path, 'other than before!');
  await utimes(path, 1, 1);
  expect(hex(await fileDigest(path, folder))).toBe(sha256('other than before!'));
});

test('a damaged cache is replaced', async () => {
  const path = join(folder, 'weights');
  await writeFile(path, 'text');
  await writeFile(join(folder, 'file-digests.json'), '[{"path":1}]');
  expect(hex(await fileDigest(path, folder))).toBe(sha256('text'));
  expect(await readFile(join(folder, 'file-digests.json'), 'utf8')).toContain(sha256('text'));
});

test('a cache that is too long is not read', async () => {
  const path = join(folder, 'weights');
  const cachePath = join(folder, 'file-digests.json');
  await writeFile(path, 'text');
  await fileDigest(path, folder);
  const marked = (await readFile(cachePath, 'utf8')).replace(sha256('text'), sha256('marked'));
  await writeFile(cachePath, marked.padEnd((1 << 20) + 1));
  expect(hex(await fileDigest(path, folder))).toBe(sha256('text'));
});

test('a missing file is named', async () => {
  await expect(fileDigest(join(folder, 'nothing'), folder)).rejects.toMatchObject({ code: 'NOT_FOUND' });
});

test('stops when aborted', async () => {
  const path = join(folder, 'weights');
  await writeFile(path, 'text');
  await expect(fileDigest(path, folder, AbortSignal.abort())).rejects.toMatchObject({ name: 'AbortError' });
});
