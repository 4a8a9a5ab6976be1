import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { MAX_NAME_BYTES, modelNameOf } from '../src/index.js';

describe('modelNameOf', () => {
  it.each([
    ['models/muse-nano/muse-nano-q8_0.gguf', 'Nano Hf', 'muse-nano'],
    ['models/muse-nano/muse-nano-wide-q4_k_m.gguf', '', 'muse-nano-wide'],
    ['models/muse-nano/hf', '', 'muse-nano'],
    ['/m/Muse-Glimmer-30B-UD-IQ2_XS.gguf', '', 'Muse-Glimmer-30B-UD'],
    ['/m/Muse-Glimmer-30B.Q4_K_M-00001-of-00003.gguf', '', 'Muse-Glimmer-30B'],
    ['/m/Muse-Glimmer-30B-BF16.gguf', '', 'Muse-Glimmer-30B'],
    ['RedHatAI/Muse-Glimmer-30B-NVFP4', '', 'Muse-Glimmer-30B'],
    [
      '/c/hub/models--RedHatAI--Muse-Glimmer-30B-NVFP4/snapshots/0123456789abcdef0123456789abcdef01234567',
      '',
      'Muse-Glimmer-30B',
    ],
    [`/usr/share/ollama/models/blobs/sha256-${'a1'.repeat(32)}`, 'Muse Glimmer 30B', 'Muse-Glimmer-30B'],
    ['C:\\models\\llama-3.2-1b-f16.gguf', '', 'llama-3.2-1b'],
    ['./model.gguf', 'Own name', 'Own-name'],
    ['model.gguf', '', 'model'],
    ['', '', 'model'],
    [`${'ä'.repeat(100)}.gguf`, '', 'ä'.repeat(64)],
    [`x${'𝒜'.repeat(100)}.gguf`, '', `x${'𝒜'.repeat(31)}`],
  ])('%s with the own name "%s" is %s', (path, ownName, expected) => {
    expect(modelNameOf(path, ownName)).toBe(expected);
  });

  it('fits the limit of a name and holds nothing that a terminal acts on, whatever the path is', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary', maxLength: 300 }), fc.string({ unit: 'binary' }), (path, ownName) => {
        const name = modelNameOf(path, ownName);
        expect(Buffer.byteLength(name)).toBeLessThanOrEqual(MAX_NAME_BYTES);
        expect(name).toMatch(/^[\p{L}\p{N}._-]+$/u);
      }),
    );
  });
});
