import { Engine, type KvStage, type ModelInfo, loadModel } from '@muser/metal';
import { ENGINE_THREADS } from './machine.js';
import { makeShapeModel, SHAPE_MODEL } from './shape-model.js';
import { figure, median } from './statistics.js';

const CHUNK = 512;
const CHUNKS = 16;

/**
 * Bytes per second from verified wire bytes to installed cells, against a plain copy of the same bytes, with the
 * 30-B's KV geometry (52 layers, 2 KV heads of 128). The rows are synthetic: an install does not look at what they mean.
 */
export async function installBenchmark(): Promise<object> {
  await makeShapeModel();
  const model = await loadModel(SHAPE_MODEL);
  const engine = await Engine.create(model, {
    maxSequences: 1,
    contextTokens: CHUNK * (CHUNKS + 1),
    chunkTokens: CHUNK,
    flashAttention: true,
    kvType: 'f16',
    threads: ENGINE_THREADS,
  });
  const parts = syntheticChunk(model.info);
  const chunkBytes = parts.reduce((sum, part) => sum + part.byteLength, 0);

  const copies: number[] = [];
  const installs: number[] = [];
  const sequence = engine.open(CHUNK * CHUNKS);
  for (let chunk = 0; chunk < CHUNKS; chunk++) {
    copies.push(timeCopy(parts));
    const started = performance.now();
    const stage = sequence.stage(chunk * CHUNK, (chunk + 1) * CHUNK, chunk * CHUNK);
    fill(stage, chunk * CHUNK, parts);
    await sequence.install(stage);
    stage.dispose();
    installs.push(performance.now() - started);
  }
  await sequence.dispose();
  await engine.close();
  model.close();

  const rate = (milliseconds: number) => chunkBytes / milliseconds / 1e6;
  const [copy, install] = [median(copies.slice(1)), median(installs.slice(1))];
  return {
    chunkTokens: CHUNK,
    chunkBytes,
    copyGBs: figure(rate(copy)),
    installGBs: figure(rate(install)),
    ratio: figure(copy / install),
    goal: 0.5,
  };
}

/** K and V rows of every layer of a chunk, K before V: small f16 numbers, each part in memory of its own. */
function syntheticChunk({ geometry }: ModelInfo): Uint8Array[] {
  return geometry.layers.flatMap((_, layer) =>
    [0, 1].map((kind) => {
      const bytes = Buffer.alloc(CHUNK * geometry.kvHeads * geometry.headDimension * 2);
      for (let i = 0; i < bytes.length; i += 2) bytes.writeUInt16LE(0x2c00 + ((i * 31 + layer * 7 + kind) % 0x0fff), i);
      return bytes;
    }),
  );
}

function fill(stage: KvStage, start: number, parts: Uint8Array[]): void {
  parts.forEach((part, index) => {
    stage.put(Math.floor(index / 2), index % 2 === 0 ? 'k' : 'v', start, CHUNK, 'f16', part);
  });
}

/** Milliseconds to copy the same bytes into memory that was touched before. */
function timeCopy(parts: Uint8Array[]): number {
  const target = new Uint8Array(parts.reduce((sum, part) => sum + part.byteLength, 0)).fill(1);
  const started = performance.now();
  let at = 0;
  for (const part of parts) {
    target.set(part, at);
    at += part.byteLength;
  }
  return performance.now() - started;
}
