import { Engine, loadModel } from '@muser/metal';
import { rowBytesOf } from '@muser/protocol';

import { MUSE_NANO } from './model.js';
import { Rows } from './rows.js';

export interface DirectOptions {
  chunkTokens: number;
  /** The engine's own, when the chunks are smaller. */
  engineChunkTokens?: number;
  flashAttention?: boolean;
  kvType?: 'f16' | 'q8_0';
}

/** Rows [0, N-1) of a prompt from an engine of their own, exported at each chunk's end, without a producer. */
export async function directRows(tokens: Uint32Array, o: DirectOptions): Promise<Rows> {
  const count = tokens.length - 1;
  const model = await loadModel(MUSE_NANO);
  const engine = await Engine.create(model, {
    maxSequences: 1,
    contextTokens: Math.max(count, 1024),
    chunkTokens: o.engineChunkTokens ?? Math.max(o.chunkTokens, 512),
    flashAttention: o.flashAttention ?? true,
    kvType: o.kvType ?? 'f16',
    threads: 1,
  });
  const { geometry, vocabularySize } = model.info;
  const whole = { ...geometry, vocabularySize };
  const rows = new Rows(whole, 'f16', count);
  const rowBytes = rowBytesOf(whole);
  const sequence = engine.open(count);
  for (let start = 0; start < count; start += o.chunkTokens) {
    const end = Math.min(start + o.chunkTokens, count);
    await sequence.evaluate(tokens.subarray(start, end));
    const windowStart = Math.max(start, end - geometry.windowTokens);
    const exported = await sequence.exportRange(start, end, { windowStart });
    for (const [layer, kind] of geometry.layers.entries()) {
      const from = kind === 'window' ? windowStart : start;
      for (const part of ['k', 'v'] as const) {
        const bytes = new Uint8Array((end - from) * rowBytes);
        exported.read(layer, part, from, end - from, bytes, 0);
        rows.put(layer, part, from, bytes);
      }
    }
    exported.dispose();
  }
  await sequence.dispose();
  await engine.close();
  model.close();
  return rows;
}
