import { execFile } from 'node:child_process';
import { existsSync, mkdirSync } from 'node:fs';
import { promisify } from 'node:util';
import { MUSE_NANO, inRepository } from './machine.js';

/** Has the 30-B's KV geometry (52 layers, every fourth global, 2 KV heads of 128, a window of 2,048) and tiny weights. */
export const SHAPE_MODEL = inRepository('.cache/models/kv-shape.gguf');

/** Makes it when it is not there. */
export async function makeShapeModel(): Promise<void> {
  if (existsSync(SHAPE_MODEL)) return;
  mkdirSync(inRepository('.cache/models'), { recursive: true });
  const tool = inRepository('native/metal/build/cmake/tools/muser-make-kv-shape');
  await promisify(execFile)(tool, ['--tokenizer', MUSE_NANO, SHAPE_MODEL]);
}
