import { mkdir, readdir, readFile, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { parseManifest, pathProblem, readManifest, type Manifest } from '../../src/models/manifest.js';
import { FileServer } from '../support/file-server.js';
import { manifestOf, noise, temporaryFolder, testPull } from '../support/models.js';

const good = manifestOf({ 'a.bin': noise(10) });
const withFile = (change: object): unknown => ({ ...good, files: [{ ...good.files[0], ...change }] });
const parse = (value: unknown): Manifest => parseManifest(JSON.stringify(value), 'test.json');

describe('a manifest', () => {
  it('is read', () => {
    expect(parse(good)).toEqual(good);
  });

  it('is read up to its cap, and not beyond it', async () => {
    const folder = await temporaryFolder();
    const path = join(folder.path, 'manifest.json');
    await writeFile(path, JSON.stringify(good).padEnd(4 * 1024 * 1024));
    expect(await readManifest(path)).toEqual(good);
    await writeFile(path, JSON.stringify(good).padEnd(4 * 1024 * 1024 + 1));
    await expect(readManifest(path)).rejects.toMatchObject({ code: 'MESSAGE_TOO_LARGE' });
    await folder.remove();
  });

  const bad: [string, unknown][] = [
    ['no JSON object', []],
    ['an unknown key', { ...good, digest: 'x' }],
    ['another schema', { ...good, schema: 2 }],
    ['no files', { ...good, files: [] }],
    ['no digest', withFile({ sha256: undefined })],
    ['a short digest', withFile({ sha256: 'ab' })],
    ['a digest in capitals', withFile({ sha256: 'A'.repeat(64) })],
    ['a negative size', withFile({ size: -1 })],
    ['a size with a fraction', withFile({ size: 1.5 })],
    ['a size beyond the limit', withFile({ size: 2 ** 41 })],
    ['a name with a slash', { ...good, name: '../x' }],
    ['a branch as revision', { ...good, source: { ...good.source, revision: 'main' } }],
    ['a repository with dots', { ...good, source: { ...good.source, repository: '../..' } }],
    ['the same path twice', { ...good, files: [good.files[0], { ...good.files[0], path: 'A.BIN' }] }],
    ['a file that is a folder too', { ...good, files: [good.files[0], { ...good.files[0], path: 'a.bin/b' }] }],
    ...['../a', 'a/../../b', '/etc/passwd', 'a//b', './a', 'a/.', '', 'a\\b', 'c:x', 'a\nb', '.muser/lock', '.MUSER/x'].map(
      (path): [string, unknown] => [`the path ${JSON.stringify(path)}`, withFile({ path })],
    ),
    ['a path that is too long', withFile({ path: 'a'.repeat(513) })],
  ];
  it.each(bad)('with %s is refused', (_, value) => {
    expect(() => parse(value)).toThrow(expect.objectContaining({ code: 'CONFIG_INVALID' }));
  });

  it('of too many files is refused', () => {
    const files = Array.from({ length: 2001 }, (_, i) => ({ ...good.files[0], path: `f${i}` }));
    expect(() => parse({ ...good, files })).toThrow(/files/);
  });

  it('never has a path that leaves its folder', () => {
    const segment = fc.oneof(fc.constantFrom('..', '.', '', '/', '\\', 'a', '.muser'), fc.string({ maxLength: 5 }));
    fc.assert(
      fc.property(fc.array(segment, { maxLength: 6 }), (segments) => {
        const path = segments.join('/');
        if (pathProblem(path) !== null) return;
        expect(join('/root/model', path).startsWith('/root/model/')).toBe(true);
      }),
    );
  });

  it('of muse-nano is that of the files in the checkout', async () => {
    const root = new URL('../../../../models/', import.meta.url);
    const manifest = parseManifest(await readFile(new URL('muse-nano.json', root), 'utf8'), 'muse-nano.json');
    const paths = manifest.files.map(({ path }) => path);
    const inHf = (await readdir(new URL('muse-nano/hf', root))).map((name) => `hf/${name}`);
    expect(paths.sort()).toEqual([...inHf, 'muse-nano-q8_0.gguf', 'muse-nano-wide-q4_k_m.gguf'].sort());
  });
});

describe('the folder that is pulled to', () => {
  let folder: { path: string; remove: () => Promise<void> };
  let server: FileServer;
  const files = { 'deep/a.bin': noise(10) };
  beforeEach(async () => {
    folder = await temporaryFolder();
    server = await FileServer.start(files);
    await mkdir(join(folder.path, 'outside'));
    await mkdir(join(folder.path, 'model'));
  });
  afterEach(async () => {
    await server.close();
    await folder.remove();
  });
  const pulled = () => testPull(server.url, { manifest: manifestOf(files), folder: join(folder.path, 'model') });

  it('is not left through a link to a folder', async () => {
    await symlink(join(folder.path, 'outside'), join(folder.path, 'model/deep'));
    await expect(pulled()).rejects.toMatchObject({ code: 'PERMISSION_DENIED' });
    expect(await readdir(join(folder.path, 'outside'))).toEqual([]);
  });

  it('is not left through a link to a file: the link is replaced', async () => {
    await mkdir(join(folder.path, 'model/deep'));
    await writeFile(join(folder.path, 'outside/target'), 'keep me');
    await symlink(join(folder.path, 'outside/target'), join(folder.path, 'model/deep/a.bin'));
    await pulled();
    expect(await readFile(join(folder.path, 'outside/target'), 'utf8')).toBe('keep me');
    expect(files['deep/a.bin'].equals(await readFile(join(folder.path, 'model/deep/a.bin')))).toBe(true);
  });

  it('with a folder in the place of a file is refused', async () => {
    await mkdir(join(folder.path, 'model/deep/a.bin'), { recursive: true });
    await expect(pulled()).rejects.toMatchObject({ code: 'PERMISSION_DENIED' });
  });
});
