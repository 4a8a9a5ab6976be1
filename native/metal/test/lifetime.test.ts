import { spawn } from 'node:child_process';
import { describe, expect, it } from 'vitest';
import { MODEL_PATH } from './support.js';

const LIMIT_MS = 60_000;

/** Runs a script against the built package in a process of its own, and waits for its end. */
async function run(
  script: string,
  flags: string[] = [],
): Promise<{ code: number | null; signal: string | null; out: string }> {
  const prelude = `
    import { loadModel, Engine, GREEDY } from '@muser/metal';
    const options = { maxSequences: 2, contextTokens: 4096, chunkTokens: 256, flashAttention: true, kvType: 'f16', threads: 1 };
    const greedy = { ...GREEDY, maxTokens: 3000 };
    const tokens = Int32Array.from({ length: 1000 }, (_, i) => 100 + (i * 37) % 3000);
    const load = () => loadModel(${JSON.stringify(MODEL_PATH)});
    const create = async () => Engine.create(await load(), options);
    const code = (call) => new Promise((resolve) => resolve(call())).then(() => 'none', (error) => error.code);
  `;
  const child = spawn(process.execPath, [...flags, '--input-type=module', '-e', prelude + script], {
    cwd: import.meta.dirname,
    stdio: ['ignore', 'pipe', 'pipe'],
    timeout: LIMIT_MS,
    killSignal: 'SIGKILL',
  });
  let out = '';
  child.stdout.on('data', (text: Buffer) => (out += text.toString()));
  child.stderr.on('data', (text: Buffer) => (out += text.toString()));
  return await new Promise((resolve, reject) => {
    child.once('error', reject);
    child.once('close', (code, signal) => {
      resolve({ code, signal, out: out.trim() });
    });
  });
}

const CLEAN = { code: 0, signal: null };

describe('lifetimes', { timeout: 120_000 }, () => {
  it('a process ends when engine, model and sequences are dropped without closing', async () => {
    expect(
      await run(`const engine = await create(); const sequence = engine.open(2000); await sequence.evaluate(tokens);
        console.log(sequence.position);`),
    ).toEqual({ ...CLEAN, out: '1000' });
  });

  it('garbage collection of everything, in any order, frees the rows and the thread', async () => {
    expect(
      await run(
        `let engine = await create();
        for (let round = 0; round < 5; round++) {
          const sequence = engine.open(2000); await sequence.evaluate(tokens.subarray(0, 100));
          const stage = sequence.stage(100, 200, 100);
          (await sequence.exportRange(0, 100, { windowStart: 0 })).sizeBytes;
        }
        console.log('opened');`.replace(
          'const sequence = engine.open(2000);',
          `let sequence; for (let attempt = 0; ; attempt++) {
            try { sequence = engine.open(2000); break; } catch (error) {
              if (error.code !== 'CONTEXT_FULL' || attempt > 100) throw error;
              gc(); await new Promise((resolve) => setImmediate(resolve));
            }
          }`,
        ) + `engine = null; gc(); await new Promise((resolve) => setImmediate(resolve)); gc(); console.log('dropped');`,
        ['--expose-gc'],
      ),
    ).toEqual({ ...CLEAN, out: 'opened\ndropped' });
  });

  it('process.exit while decoding, prefilling, loading and creating is clean', async () => {
    expect(
      await run(`const engine = await create(); const sequence = engine.open(4000);
        sequence.generate({ ...greedy, prompt: tokens }, () => { console.log('exit'); process.exit(0); }).catch(() => {});`),
    ).toEqual({ ...CLEAN, out: 'exit' });
    // The thread may be anywhere in its computation, so more than once.
    for (let round = 0; round < 5; round++) {
      expect(
        await run(`const engine = await create(); const sequence = engine.open(4000);
          sequence.evaluate(tokens, { onProgress: () => { console.log('exit'); process.exit(0); } }).catch(() => {});`),
      ).toEqual({ ...CLEAN, out: 'exit' });
    }
    expect(await run(`load(); load(); console.log('exit'); process.exit(0);`)).toEqual({ ...CLEAN, out: 'exit' });
    expect(
      await run(`const model = await load(); Engine.create(model, options); console.log('exit'); process.exit(0);`),
    ).toEqual({ ...CLEAN, out: 'exit' });
  });

  it('an uncaught error while decoding ends the process with its own code', async () => {
    const { code, signal, out } = await run(`const engine = await create(); const sequence = engine.open(4000);
      sequence.generate({ ...greedy, prompt: tokens }, () => {}).catch(() => {});
      setImmediate(() => { throw new Error('mine'); });`);
    expect({ code, signal }).toEqual({ code: 1, signal: null });
    expect(out).toContain('Error: mine');
  });

  it('a pending promise keeps the process alive', async () => {
    expect(
      await run(`const engine = await create(); const sequence = engine.open(4000);
        sequence.evaluate(tokens).then(() => console.log('done'));`),
    ).toEqual({ ...CLEAN, out: 'done' });
  });

  it('closing twice, closing while work runs, and using what is closed', async () => {
    expect(
      await run(`const model = await load(); const engine = await Engine.create(model, options);
        const sequence = engine.open(2000); const other = engine.open(2000);
        const running = code(() => sequence.generate({ ...greedy, prompt: tokens }, () => {}));
        const waiting = code(() => sequence.exportRange(0, 10, { windowStart: 10 }));
        model.close(); model.close();
        await Promise.all([engine.close(), engine.close()]); await engine.close();
        console.log(await running, await waiting, await code(() => engine.open(1)), await code(() => other.evaluate(tokens)),
          await code(() => other.stage(0, 1, 0)), engine.stats().contextTokens);
        await sequence.dispose(); await sequence.dispose(); await other.dispose();
        console.log(await code(() => sequence.truncate(0)));`),
    ).toEqual({
      ...CLEAN,
      out: 'CANCELLED CANCELLED SEQUENCE_STATE SEQUENCE_STATE none 4096\nSEQUENCE_STATE',
    });
  });

  it('works in a worker that is ended in the middle', async () => {
    expect(
      await run(`import { Worker } from 'node:worker_threads';
        const source = \`import('@muser/metal').then(async ({ loadModel, Engine }) => {
          const { parentPort } = await import('node:worker_threads');
          const engine = await Engine.create(await loadModel(${JSON.stringify(MODEL_PATH)}), \${JSON.stringify(options)});
          engine.open(4000).evaluate(new Int32Array(3900).fill(7), { onProgress: () => parentPort.postMessage(1) });
        })\`;
        const worker = new Worker(source, { eval: true });
        await new Promise((resolve, reject) => { worker.once('message', resolve); worker.once('error', reject); });
        await worker.terminate();
        const engine = await create(); const sequence = engine.open(100); await sequence.evaluate(tokens.subarray(0, 50));
        console.log(sequence.position); await engine.close();`),
    ).toEqual({ ...CLEAN, out: '50' });
  });

  it('cannot be tricked by objects that are not its own', async () => {
    expect(
      await run(`import { createRequire } from 'node:module';
        const addon = createRequire(import.meta.url)('../build/muser_engine.node');
        await load();
        const model = await addon.loadModel({ path: ${JSON.stringify(MODEL_PATH)}, gpuLayers: null, threads: 1 }, null).promise;
        const seen = [];
        for (const call of [
          () => addon.createEngine({}, options), () => addon.createEngine(null, options), () => addon.createEngine(model, {}),
          () => new model.constructor(), () => new model.constructor(model), () => model.info.call({}),
          () => model.tokenize(1, true), () => model.pieceBytes('a'), () => addon.loadModel(undefined, null),
          () => addon.loadModel({ path: 'x' }, 5), () => addon.setLogSink(1),
        ]) { try { await call(); seen.push('accepted'); } catch (error) { seen.push(error instanceof Error); } }
        console.log(seen.join());`),
    ).toEqual({ ...CLEAN, out: Array.from({ length: 11 }, () => 'true').join() });
  });
});
