import { execFile } from 'node:child_process';
import { mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
// The probe starts a file of its own, so it is tested as built.
import { probeAddon } from '@muser/metal';
import { checkModelFile, Engine, loadModel } from '../ts/index.js';
import { codeOf, ENGINE, MODEL_PATH, nano } from './support.js';

let folder: string;
let whole: Buffer;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'muser-loading-'));
  whole = await readFile(MODEL_PATH);
});
afterAll(() => rm(folder, { recursive: true, force: true }));

async function fileOf(name: string, content: Uint8Array): Promise<string> {
  const path = join(folder, name);
  await writeFile(path, content);
  return path;
}

describe('files that are no model', () => {
  it.each([
    ['an empty file', () => new Uint8Array()],
    ['three bytes', () => Buffer.from('GGU')],
    ['the magic alone', () => Buffer.from('GGUF')],
    ['random bytes', () => Buffer.from(Array.from({ length: 5000 }, (_, i) => (i * 7919 + 13) % 251))],
    [
      'a JPEG',
      () => Buffer.concat([Buffer.from([0xff, 0xd8, 0xff, 0xe0, 0, 16]), Buffer.from('JFIF'), Buffer.alloc(4000, 7)]),
    ],
    [
      'a safetensors file',
      () => Buffer.from('\x40\0\0\0\0\0\0\0{"weight":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}}', 'latin1'),
    ],
    ['GGUF version 1', () => Buffer.concat([Buffer.from('GGUF\x01\0\0\0'), Buffer.alloc(100)])],
    ['absurd counts', () => Buffer.concat([Buffer.from('GGUF\x03\0\0\0'), Buffer.alloc(16, 0xff), Buffer.alloc(100)])],
  ])('%s is refused', async (_, content) => {
    const path = await fileOf('broken.gguf', content());
    await expect(loadModel(path)).rejects.toMatchObject({ name: 'EngineError', code: 'MODEL_LOAD_FAILED' });
  });

  it('a missing file and a folder are refused', async () => {
    expect(await codeOf(() => loadModel(join(folder, 'nothing.gguf')))).toBe('MODEL_LOAD_FAILED');
    expect(await codeOf(() => loadModel(folder))).toBe('MODEL_LOAD_FAILED');
    expect(await codeOf(() => loadModel('a\0b'))).toBe('INVALID_ARGUMENT');
  });

  it('a truncated model is refused wherever it is cut', async () => {
    const cuts = [4, 23, 24, 100, 5000, 60_000, 120_000, 1_000_000, whole.length / 2, whole.length - 1];
    for (const cut of cuts) {
      const path = await fileOf('cut.gguf', whole.subarray(0, Math.floor(cut)));
      await expect(loadModel(path), `cut at ${cut}`).rejects.toMatchObject({ code: 'MODEL_LOAD_FAILED' });
      await expect(checkModelFile(path), `cut at ${cut}`).rejects.toMatchObject({ code: 'MODEL_LOAD_FAILED' });
    }
  });

  it('a header is checked without loading anything', async () => {
    await checkModelFile(MODEL_PATH);
    const short = await fileOf('short.gguf', whole.subarray(0, -1));
    await expect(checkModelFile(short)).rejects.toThrow(/truncated: the file has \d+ bytes, tensor \d+ of \d+ ends/);
    expect(await codeOf(() => checkModelFile('a\0b'))).toBe('INVALID_ARGUMENT');
  });

  it('an architecture that llama.cpp does not know is named', async () => {
    const other = Buffer.from(whole.toString('latin1').replaceAll('muse-glimmer', 'other-archit'), 'latin1');
    const path = await fileOf('other.gguf', other);
    await expect(loadModel(path)).rejects.toThrow(/other-archit/);
    await expect(loadModel(path)).rejects.toMatchObject({ code: 'MODEL_LOAD_FAILED' });
  });

  it('a header with flipped bytes never ends the process', async () => {
    // In a child process: llama.cpp has assertions, and one of them would end this test run.
    const script = `
      import { loadModel } from '@muser/metal';
      import { readFileSync, writeFileSync } from 'node:fs';
      const whole = readFileSync(${JSON.stringify(MODEL_PATH)});
      let seed = 12345;
      const random = () => (seed = (seed * 1103515245 + 12345) % 2147483648) / 2147483648;
      let refused = 0;
      for (let round = 0; round < 60; round++) {
        const bad = Buffer.from(whole);
        for (let i = 0; i < 3; i++) bad[Math.floor(random() * (round % 2 ? 2000 : 100000))] ^= 1 << Math.floor(random() * 8);
        const path = ${JSON.stringify(join(folder, 'flipped.gguf'))};
        writeFileSync(path, bad);
        await loadModel(path).then((model) => model.close(), (error) => {
          if (error.name !== 'EngineError') throw error;
          refused++;
        });
      }
      console.log('refused', refused);`;
    const run = promisify(execFile);
    const { stdout } = await run(process.execPath, ['--input-type=module', '-e', script], { cwd: import.meta.dirname });
    expect(stdout).toMatch(/refused [1-9]/);
  });
});

describe('loading', () => {
  it('reports progress that rises to 1', async () => {
    const seen: number[] = [];
    const copy = await fileOf('copy.gguf', whole);
    const model = await loadModel(copy, { onProgress: (fraction) => seen.push(fraction) });
    model.close();
    expect(seen.at(-1)).toBe(1);
    expect(seen).toEqual([...seen].sort((a, b) => a - b));
  });

  it('is cancelled before and while it runs', async () => {
    const copy = await fileOf('cancelled.gguf', whole);
    const early = AbortSignal.abort();
    expect(await codeOf(() => loadModel(copy, { signal: early }))).toBe('CANCELLED');
    const controller = new AbortController();
    const loading = loadModel(copy, { signal: controller.signal });
    controller.abort();
    // Loading is quick: either it noticed in time, or it had ended already.
    const outcome = await loading.then(
      (model) => {
        model.close();
        return 'loaded';
      },
      (error: unknown) => (error as { code: string }).code,
    );
    expect(['CANCELLED', 'loaded']).toContain(outcome);
    (await loadModel(copy)).close();
  });

  it('shares the weights of the same file, also through a link and while the first load runs', async () => {
    const link = join(folder, 'link.gguf');
    await symlink(MODEL_PATH, link);
    const models = await Promise.all([loadModel(MODEL_PATH), loadModel(link), loadModel(MODEL_PATH)]);
    expect(new Set(models.map((model) => model.info.path)).size).toBe(1);
    for (const model of models) model.close();
  });

  it('tells what a hand-off needs to know', async () => {
    const { info } = await nano();
    expect(info).toMatchObject({
      architecture: 'muse-glimmer',
      vocabularySize: 4096,
      kPermuted: true,
      localOnly: null,
      bosText: '<|begin_of_text|>',
      eotToken: 5,
      geometry: {
        layers: ['window', 'window', 'window', 'global', 'window', 'window', 'window', 'global'],
        kvHeads: 2,
        headDimension: 64,
        windowTokens: 512,
        ropeBase: 500_000,
        ropeLayers: 'window',
      },
    });
    expect(info.tokenizerSha256).toHaveLength(32);
    expect(info.metadata['general.architecture']).toBe('muse-glimmer');
  });

  it('refuses a closed model, and options that make no sense', async () => {
    const model = await loadModel(MODEL_PATH);
    expect(await codeOf(() => Engine.create(model, { ...ENGINE, chunkTokens: 0 }))).toBe('INVALID_ARGUMENT');
    expect(await codeOf(() => Engine.create(model, { ...ENGINE, kvType: 'q8_0' }))).toBe('INVALID_ARGUMENT');
    expect(await codeOf(() => Engine.create(model, { ...ENGINE, contextTokens: 2 ** 28 }))).toBe('OUT_OF_MEMORY');
    model.close();
    model.close();
    expect(await codeOf(() => model.tokenize('a', { special: false }))).toBe('INVALID_ARGUMENT');
    expect(await codeOf(() => Engine.create(model, ENGINE))).toBe('INVALID_ARGUMENT');
  });
});

describe('the probe', () => {
  it('describes the addon from a child process', async () => {
    const probe = await probeAddon();
    expect(probe).toMatchObject({ ok: true });
    if (!probe.ok) return;
    expect(probe.llamaCommit).not.toBe('');
    expect(probe.backends.some(({ kind }) => kind === 'cpu')).toBe(true);
  });
});
