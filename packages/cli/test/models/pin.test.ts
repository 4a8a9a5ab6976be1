import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { pin as pinRepository } from '../../src/models/hub.js';
import type { Manifest } from '../../src/models/manifest.js';
import { runCli } from '../support/cli.js';
import { FileServer } from '../support/file-server.js';
import { noise, sha256, temporaryFolder } from '../support/models.js';

const COMMIT = 'c'.repeat(40);
const WEIGHTS = noise(50_000);
const CONFIG = Buffer.from('{"hidden_size": 4}');
const REPOSITORY = 'Some-Org/Some.Model';

let folder: { path: string; remove: () => Promise<void> };
let hub: FileServer;
beforeEach(async () => {
  folder = await temporaryFolder();
  hub = await FileServer.start({});
  answer({});
});
afterEach(async () => {
  await hub.close();
  await folder.remove();
});

function gitDigest(bytes: Buffer): string {
  return createHash('sha1').update(`blob ${bytes.length}\0`).update(bytes).digest('hex');
}

const lfs = { oid: sha256(WEIGHTS), size: WEIGHTS.length, pointerSize: 134 };
const ENTRIES: Record<string, unknown>[] = [
  { type: 'directory', path: 'sub', oid: 'x', size: 0 },
  { type: 'file', path: 'sub/weights.Q4.gguf', oid: 'd'.repeat(40), size: WEIGHTS.length, lfs },
  { type: 'file', path: 'config.json', oid: gitDigest(CONFIG), size: CONFIG.length },
];

/** The hub's interface: a branch's commit, the tree in two pages, and the files. */
function answer(wrong: { entries?: unknown; config?: Buffer; next?: string; commit?: string }): void {
  const [first, second, third] = ENTRIES;
  hub.set(`Some-Org/Some.Model/resolve/${COMMIT}/config.json`, wrong.config ?? CONFIG);
  hub.set(`Some-Org/Some.Model/resolve/${COMMIT}/sub/weights.Q4.gguf`, WEIGHTS);
  hub.set(`api/models/${REPOSITORY}/revision/main`, Buffer.from(JSON.stringify({ sha: wrong.commit ?? COMMIT })));
  hub.misbehave = (request, response) => {
    if (!request.path.startsWith(`api/models/${REPOSITORY}/tree/`)) return false;
    const base = `api/models/${REPOSITORY}/tree/${COMMIT}?recursive=true`;
    if (request.path === base) {
      const next = wrong.next ?? `${hub.url}/${base}&cursor=2`;
      response.writeHead(200, { link: `<${next}>; rel="next"` });
      response.end(JSON.stringify(wrong.entries ?? [first, second]));
    } else {
      response.writeHead(200).end(JSON.stringify([third]));
    }
    return true;
  };
}

const pin = (...args: string[]) =>
  runCli(['models', 'pin', ...args], { env: { MUSER_HUB_URL: hub.url, HOME: folder.path, MUSER_HUB_TOKEN: 'hf_t' } });

const pinned = (): Promise<Manifest> =>
  pinRepository({
    repository: REPOSITORY,
    revision: 'main',
    name: 'm',
    include: [],
    source: { base: new URL(hub.url), token: null },
    signal: AbortSignal.timeout(30_000),
    onFile: () => undefined,
  });

describe('muser models pin', () => {
  it('makes a manifest of a branch, which then can be pulled by name and verified', async () => {
    const run = await pin(`${REPOSITORY}@main`, '--json');
    expect(run).toMatchObject({ exitCode: 0, stderr: '' });
    const { manifest: path } = JSON.parse(run.stdout) as { manifest: string };
    const manifest = JSON.parse(await readFile(path, 'utf8')) as Manifest;
    expect(manifest).toEqual({
      schema: 1,
      name: 'some.model',
      source: { type: 'hub', repository: REPOSITORY, revision: COMMIT },
      files: [
        { path: 'config.json', size: CONFIG.length, sha256: sha256(CONFIG) },
        { path: 'sub/weights.Q4.gguf', size: WEIGHTS.length, sha256: sha256(WEIGHTS) },
      ],
    });
    // The weights are not fetched to make it.
    expect(hub.requests.some(({ path: asked }) => asked.endsWith('.gguf'))).toBe(false);
    expect(hub.requests.every(({ authorization }) => authorization === 'Bearer hf_t')).toBe(true);

    const env = { MUSER_HUB_URL: hub.url, HOME: folder.path };
    expect(await runCli(['models', 'pull', 'some.model'], { env })).toMatchObject({ exitCode: 0 });
    const verified = await runCli(['models', 'verify', 'some.model', '--json'], { env });
    expect(JSON.parse(verified.stdout)).toMatchObject({ ok: true, unlisted: [] });
    const listed = await runCli(['models', 'list', '--json'], { env });
    expect(JSON.parse(listed.stdout)).toMatchObject({
      models: [
        { name: 'muse-nano', files: 8, present: 8 },
        { name: 'some.model', files: 2, present: 2 },
      ],
    });
  });

  it('takes only what is asked for, under the name that is asked for', async () => {
    const output = join(folder.path, 'm.json');
    const run = await pin(`${REPOSITORY}@main`, '--include', 'sub/*.Q4.gguf', '--name', 'four-bits', '--output', output);
    expect(run.exitCode).toBe(0);
    const manifest = JSON.parse(await readFile(output, 'utf8')) as Manifest;
    expect(manifest.name).toBe('four-bits');
    expect(manifest.files.map(({ path }) => path)).toEqual(['sub/weights.Q4.gguf']);
  });

  const bad: [string, Parameters<typeof answer>[0], RegExp][] = [
    ['a path that leaves the folder', { entries: [{ type: 'file', path: '../x', oid: 'o', size: 1, lfs }] }, /\.\./],
    ['a digest that is none', { entries: [{ type: 'file', path: 'x', oid: 'o', size: 1, lfs: { oid: 'z', size: 1 } }] }, /lfs/],
    ['something else than a list', { entries: { error: 'x' } }, /cannot be used/],
    ['a small file with other bytes', { config: Buffer.from('{"hidden_size": 5}') }, /listing says/],
    ['a small file that is longer', { config: noise(1000) }, /more than/],
    ['a next page elsewhere', { next: 'https://elsewhere.example/' }, /another host/],
    ['a commit that is none', { commit: 'main' }, /sha/],
  ];
  it.each(bad)('refuses %s', async (_, wrong, message) => {
    answer(wrong);
    await expect(pinned()).rejects.toMatchObject({ exitCode: 1, message: expect.stringMatching(message) });
  });

  it('refuses pages without end', async () => {
    answer({ next: `${hub.url}/api/models/${REPOSITORY}/tree/${COMMIT}?recursive=true` });
    await expect(pinned()).rejects.toThrow(/more than 20 pages/);
    expect(hub.requests.filter(({ path }) => path.includes('/tree/'))).toHaveLength(20);
  });

  it('says when there is no such repository', async () => {
    expect(await pin('no/body@main')).toMatchObject({ exitCode: 1, stderr: expect.stringContaining('NOT_FOUND') });
  });

  it.each(['Some-Org@main', 'Some-Org/Model', 'a/b@x y', 'a/b@../x'])('refuses %s', async (what) => {
    expect(await pin(what)).toMatchObject({ exitCode: 2, stdout: '' });
  });

  it('refuses digests that somebody on the way could change', async () => {
    const run = await pin(`${REPOSITORY}@main`, '--from', 'http://hub.example');
    expect(run).toMatchObject({ exitCode: 2, stderr: expect.stringContaining('plain http') });
  });

  it('refuses the name of a model that is part of muser', async () => {
    expect((await pin(`${REPOSITORY}@main`, '--name', 'muse-nano')).stderr).toContain('part of muser');
  });
});
