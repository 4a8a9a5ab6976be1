import { spawnSync } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { TinyModel } from '@muser/testing';

/** What the kernel lets the process allocate; the cache that the model is looked at with takes more. */
const LIMIT_KIB = 320 << 10;

// macOS knows no such limit.
it.skipIf(process.platform !== 'linux')(
  'a model whose whole window does not fit decodes with a small context',
  async () => {
    const folder = await mkdtemp(join(tmpdir(), 'muser-low-memory-'));
    try {
      const path = join(folder, 'wide.gguf');
      await writeFile(
        path,
        new TinyModel({ architecture: 'gemma3', layers: 40, kvHeads: 4, windowTokens: 8192 }).gguf(),
      );
      const script = `
      import { loadModel, Engine } from '@muser/metal';
      const model = await loadModel(${JSON.stringify(path)});
      const engine = await Engine.create(model, { maxSequences: 1, contextTokens: 256, chunkTokens: 64, flashAttention: true, kvType: 'f16', threads: 1 });
      const sequence = engine.open(64);
      await sequence.evaluate(Int32Array.of(65, 66, 67));
      console.log(JSON.stringify({ localOnly: model.info.localOnly, position: sequence.position }));
      await engine.close();`;
      const { stdout, stderr } = spawnSync(
        'sh',
        ['-c', `ulimit -d ${LIMIT_KIB} && exec "$0" --input-type=module -e "$1"`, process.execPath, script],
        { cwd: import.meta.dirname, encoding: 'utf8', timeout: 50_000 },
      );
      expect(stderr).toBe('');
      expect(JSON.parse(stdout)).toEqual({
        localOnly: expect.stringMatching(/^its cache could not be looked at, which takes 8704 tokens in every layer: /),
        position: 3,
      });
    } finally {
      await rm(folder, { recursive: true, force: true });
    }
  },
);
