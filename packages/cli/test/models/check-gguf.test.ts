import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { CliError } from '../../src/exit.js';
import { readGgufHeader } from '../../src/models/check/gguf-header.js';
import { ggufTraits } from '../../src/models/check/gguf-traits.js';
import { verdictOf } from '../../src/models/check/traits.js';
import { type Entry, ggufFile, type Tensor } from '../support/gguf.js';
import { temporaryFolder } from '../support/models.js';

const NANO = fileURLToPath(new URL('../../../../models/muse-nano/muse-nano-q8_0.gguf', import.meta.url));

let folder: { path: string; remove: () => Promise<void> };
beforeAll(async () => {
  folder = await temporaryFolder();
});
afterAll(() => folder.remove());

const u32 = (value: number): Entry => ({ type: 'u32', value });
const f32 = (value: number): Entry => ({ type: 'f32', value });
const text = (value: string): Entry => ({ type: 'text', value });
/** A dense model with grouped queries, of an architecture that nobody has heard of: names decide nothing. */
const DENSE: Record<string, Entry> = {
  'general.architecture': text('novel'),
  'novel.block_count': u32(4),
  'novel.embedding_length': u32(256),
  'novel.attention.head_count': u32(4),
  'novel.attention.head_count_kv': u32(2),
  'novel.rope.freq_base': f32(500_000),
  'tokenizer.ggml.model': text('gpt2'),
  'tokenizer.ggml.tokens': { type: 'texts', value: ['a', 'b', 'c'] },
};
const K: Tensor = { name: 'blk.0.attn_k.weight', shape: [256, 128] };

async function traitsOf(changes: Record<string, Entry | null>, tensors: readonly Tensor[] = [K]) {
  const entries: Record<string, Entry> = { ...DENSE };
  for (const [key, entry] of Object.entries(changes)) {
    if (entry === null) delete entries[key];
    else entries[key] = entry;
  }
  const path = join(folder.path, 'model.gguf');
  await writeFile(path, ggufFile(entries, tensors));
  return ggufTraits(path);
}

describe('a GGUF file', () => {
  it('of muse-nano is remote-capable, with the geometry of its README', () => {
    const traits = ggufTraits(NANO);
    expect(verdictOf(traits.obstacles)).toBe('remote-capable');
    expect(traits.shape).toMatchObject({
      layers: ['window', 'window', 'window', 'global', 'window', 'window', 'window', 'global'],
      queryHeads: 6,
      kvHeads: 2,
      headDimension: 64,
      windowTokens: 512,
      ropeBase: 500_000,
      vocabularySize: 4_096,
    });
    expect(traits.tokenCount).toBe(4_096);
  });

  it('of any dense model with grouped queries is remote-capable', async () => {
    const traits = await traitsOf({});
    expect(traits.obstacles).toEqual([]);
    expect(traits.shape).toMatchObject({ layers: ['global', 'global', 'global', 'global'], headDimension: 64, windowTokens: 0 });
  });

  const window = { 'novel.attention.sliding_window': u32(128) };
  const pattern = 'novel.attention.sliding_window_pattern';
  it('may have its window layers as a list or as a period', async () => {
    const list = await traitsOf({ ...window, [pattern]: { type: 'bools', value: [true, true, false, true] } });
    expect(list.shape?.layers).toEqual(['window', 'window', 'global', 'window']);
    const period = await traitsOf({ ...window, [pattern]: u32(2) });
    expect(period.shape?.layers).toEqual(['window', 'global', 'window', 'global']);
    expect([list.obstacles, period.obstacles]).toEqual([[], []]);
  });

  const local: [string, Record<string, Entry>, RegExp][] = [
    ['MLA', { 'novel.attention.kv_lora_rank': u32(512) }, /MLA/],
    ['Mamba layers', { 'novel.ssm.state_size': u32(16) }, /recurrent/],
    ['RWKV', { 'novel.wkv.head_size': u32(64) }, /recurrent/],
    ['KV heads that differ', { 'novel.attention.head_count_kv': { type: 'u32s', value: [2, 2, 1, 2] } }, /differs between/],
    ['an odd head dimension', { 'novel.attention.key_length': u32(63), 'novel.attention.value_length': u32(63) }, /odd/],
    ['V shorter than K', { 'novel.attention.value_length': u32(32) }, /differ in length/],
    ['RoPE on part of a head', { 'novel.rope.dimension_count': u32(32) }, /32 of 64/],
    ['scaled RoPE', { 'novel.rope.scaling.type': text('yarn') }, /yarn/],
    ['RoPE with sections', { 'novel.rope.dimension_sections': { type: 'u32s', value: [1, 2, 3] } }, /M-RoPE/],
    ['two RoPE bases', { 'novel.rope.freq_base_swa': f32(10_000) }, /different RoPE bases/],
    ['ALiBi', { 'novel.attention.max_alibi_bias': f32(8) }, /ALiBi/],
    ['a window of unknown layers', window, /does not say which layers/],
    ['a window list that is too short', { ...window, [pattern]: { type: 'bools', value: [true] } }, /one entry for each/],
    ['SentencePiece', { 'tokenizer.ggml.model': text('llama') }, /byte-level BPE \(llama\)/],
    ['shared KV', { 'novel.attention.shared_kv_layers': u32(2) }, /share/],
    ['query heads in no proportion', { 'novel.attention.head_count_kv': u32(3) }, /no multiple of 3/],
  ];
  it.each(local)('with %s is local only', async (_, changes, reason) => {
    const { obstacles } = await traitsOf(changes, [{ name: 'output.weight', shape: [1] }]);
    expect(verdictOf(obstacles)).toBe('local only');
    expect(obstacles.map((obstacle) => obstacle.reason).join('\n')).toMatch(reason);
  });

  it('with experts is remote-capable, as its attention is like any other, and says so', async () => {
    const { obstacles, notes } = await traitsOf({ 'novel.expert_count': u32(8) });
    expect(obstacles).toEqual([]);
    expect(notes.join()).toContain('mixture of experts');
  });

  it('with a table of RoPE factors is local only', async () => {
    const { obstacles } = await traitsOf({}, [K, { name: 'rope_freqs.weight', shape: [32] }]);
    expect(verdictOf(obstacles)).toBe('local only');
  });

  const unsupported: [string, Record<string, Entry | null>, readonly Tensor[], RegExp][] = [
    ['several files', { 'split.count': u32(3) }, [K], /one of several/],
    ['an encoder', { 'novel.attention.causal': { type: 'bool', value: false } }, [K], /encoder/],
    ['embeddings', { 'novel.pooling_type': u32(1) }, [K], /embeddings/],
    ['no weights', {}, [], /no weights/],
    ['no vocabulary', { 'tokenizer.ggml.tokens': null }, [K], /no vocabulary/],
    ['too many layers', { 'novel.block_count': u32(4_000_000_000) }, [K], /layers is 4000000000/],
    ['K of another size', {}, [{ ...K, shape: [256, 64] }], /makes 64 elements/],
  ];
  it.each(unsupported)('with %s is unsupported', async (_, changes, tensors, reason) => {
    const { obstacles } = await traitsOf(changes, tensors);
    expect(verdictOf(obstacles)).toBe('unsupported');
    expect(obstacles.map((obstacle) => obstacle.reason).join('\n')).toMatch(reason);
  });
});

describe('a damaged GGUF file', () => {
  const whole = ggufFile(DENSE, [K]);
  const patched = (at: number, bytes: Buffer): Buffer => {
    const copy = Buffer.from(whole);
    bytes.copy(copy, at);
    return copy;
  };
  const huge = Buffer.alloc(8, 0xff);
  const cases: [string, Buffer, RegExp][] = [
    ['empty', Buffer.alloc(0), /no GGUF file/],
    ['something else', Buffer.from('PK\u0003\u0004 and so on'), /no GGUF file/],
    ['of version 1', patched(4, Buffer.from([1, 0, 0, 0])), /version 1/],
    ['big-endian', patched(4, Buffer.from([0, 0, 0, 3])), /big-endian/],
    ['with a huge number of tensors', patched(8, huge), /number of tensors is 18446744073709551615/],
    ['with a huge number of keys', patched(16, huge), /number of keys/],
    ['with a huge key', patched(24, huge), /a key is/],
    ['with a huge text', patched(24 + 8 + 20 + 4, huge), /general.architecture is/],
    ['with a key beyond the cap', ggufFile({ ...DENSE, ['k'.repeat(1025)]: text('x') }, [K]), /a key is 1025/],
    ['with a name beyond the cap', ggufFile(DENSE, [{ ...K, name: 'n'.repeat(257) }]), /is 257, allowed are 256/],
    ['with a token beyond the cap', withToken('t'.repeat(65_537)), /is 65537, allowed are 65536/],
    ['with the same key twice', twice(), /twice/],
    ['cut in the keys', whole.subarray(0, 100), /truncated/],
    ['cut in a text that is passed over', ggufFile({ ...DENSE, long: text('x'.repeat(2000)) }).subarray(0, -100), /truncated/],
    ['cut before its tensors', whole.subarray(0, whole.length - 64), /truncated/],
  ];
  function withToken(token: string): Buffer {
    return ggufFile({ ...DENSE, 'tokenizer.ggml.tokens': { type: 'texts', value: [token] } }, [K]);
  }
  function twice(): Buffer {
    const entries: Record<string, Entry> = { 'general.architecturf': text('x'), ...DENSE };
    const bytes = ggufFile(entries, [K]);
    bytes.write('e', bytes.indexOf('architecturf') + 11);
    return bytes;
  }
  it.each(cases)('(%s) is refused with a reason', async (_, bytes, reason) => {
    const path = join(folder.path, 'damaged.gguf');
    await writeFile(path, bytes);
    expect(() => ggufTraits(path)).toThrow(
      expect.objectContaining({ code: 'MODEL_LOAD_FAILED', message: expect.stringMatching(reason) }),
    );
  });

  it('(the real one, cut anywhere) is refused: its tensors must lie within it', async () => {
    const real = await readFile(NANO);
    const path = join(folder.path, 'cut.gguf');
    for (const cut of [real.length - 1, real.length - 4096, real.length >> 1, 200_000]) {
      await writeFile(path, real.subarray(0, cut));
      expect(() => ggufTraits(path), `cut at ${cut}`).toThrow(/truncated: it has \d+ bytes, its tensors end at/);
    }
    await writeFile(path, real);
    expect(ggufTraits(path).obstacles).toEqual([]);
  });

  it('never makes the reader crash, hang or take much memory', async () => {
    const seed = Number(process.env['MUSER_TEST_SEED'] ?? Date.now() % 2 ** 31);
    const random = generator(seed);
    const original = ggufFile(
      { ...DENSE, 'novel.attention.sliding_window_pattern': { type: 'bools', value: [true, false, true, false] } },
      [K, { name: 'rope_freqs.weight', shape: [32] }],
    );
    const path = join(folder.path, 'fuzz.gguf');
    const before = process.memoryUsage().rss;
    let [refused, highest] = [0, before];
    for (let round = 0; round < 2_000; round += 1) {
      const bytes = mutate(original, random);
      await writeFile(path, bytes);
      try {
        ggufTraits(path);
      } catch (error) {
        if (!(error instanceof CliError)) throw new Error(`seed ${seed}, round ${round}: ${String(error)}`, { cause: error });
        refused += 1;
      }
      highest = Math.max(highest, process.memoryUsage().rss);
    }
    expect(refused, `seed ${seed}`).toBeGreaterThan(500);
    // The windows of all rounds that were not collected yet, and the test runner's own doings.
    expect(highest - before, `seed ${seed}`).toBeLessThan(256 * 2 ** 20);
  });

  it('with counts of its own is read in little memory: nothing is allocated for what a header claims', async () => {
    // A million empty tokens: 8 MiB of zeros that are read through one window.
    const head = Buffer.from(ggufFile({ 'general.architecture': text('x') }).subarray(0, -64));
    head.writeBigUInt64LE(2n, 16);
    const key = Buffer.from('tokenizer.ggml.tokens');
    const claim = Buffer.alloc(8 + key.length + 4 + 4 + 8);
    claim.writeBigUInt64LE(BigInt(key.length), 0);
    key.copy(claim, 8);
    claim.writeUInt32LE(9, 8 + key.length);
    claim.writeUInt32LE(8, 12 + key.length);
    claim.writeBigUInt64LE(2n ** 20n, 16 + key.length);
    const path = join(folder.path, 'claims.gguf');
    await writeFile(path, Buffer.concat([head, claim, Buffer.alloc(8 * 2 ** 20)]));
    const before = process.memoryUsage().arrayBuffers;
    expect(readGgufHeader(path).tokenCount).toBe(2 ** 20);
    expect(process.memoryUsage().arrayBuffers - before).toBeLessThan(8 * 2 ** 20);
  });
});

/** mulberry32 */
function generator(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Flips bytes, writes large numbers, cuts and repeats. */
function mutate(original: Buffer, random: () => number): Buffer {
  let bytes = Buffer.from(original);
  const below = (limit: number): number => Math.floor(random() * limit);
  for (let edits = 1 + below(4); edits > 0 && bytes.length > 32; edits -= 1) {
    const at = below(bytes.length);
    const kind = below(5);
    if (kind === 0) bytes.writeUInt8(below(256), at);
    else if (kind === 1) bytes.fill(0xff, at, Math.min(bytes.length, at + 1 + below(8)));
    else if (kind === 2) bytes = bytes.subarray(0, at);
    else if (kind === 3 && at + 8 <= bytes.length) bytes.writeBigUInt64LE(BigInt(below(2 ** 31)) << BigInt(below(34)), at);
    else bytes = Buffer.concat([bytes.subarray(0, at), bytes.subarray(below(at + 1))]);
  }
  return bytes;
}
