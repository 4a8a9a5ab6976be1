import { copyFile, mkdir, readFile, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { checkModels } from '../../src/models/check/check.js';
import { readSafetensorsHeader } from '../../src/models/check/hf-traits.js';
import { runCli } from '../support/cli.js';
import { temporaryFolder } from '../support/models.js';

const NANO = fileURLToPath(new URL('../../../../models/muse-nano/', import.meta.url));
const GGUF = join(NANO, 'muse-nano-q8_0.gguf');
const WIDE = join(NANO, 'muse-nano-wide-q4_k_m.gguf');
const HF = join(NANO, 'hf');

interface Config extends Record<string, unknown> {
  text_config: Record<string, unknown>;
}
interface Tokenizer {
  model: { type: string; vocab: Record<string, number> };
  added_tokens: { id: number; content: string }[];
}

let folder: { path: string; remove: () => Promise<void> };
beforeEach(async () => {
  folder = await temporaryFolder();
});
afterEach(() => folder.remove());

/** A safetensors file of one tensor, without its data. */
function safetensors(name: string, shape: number[]): Buffer {
  const header = Buffer.from(JSON.stringify({ __metadata__: {}, [name]: { dtype: 'BF16', shape, data_offsets: [0, 0] } }));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(header.length));
  return Buffer.concat([length, header]);
}

/** A folder like muse-nano's, changed. */
async function changed(change: {
  config?: (config: Config) => void;
  tokenizer?: (tokenizer: Tokenizer) => void;
  weights?: Buffer;
}): Promise<string> {
  const path = join(folder.path, 'hf');
  await mkdir(path);
  const config = JSON.parse(await readFile(join(HF, 'config.json'), 'utf8')) as Config;
  change.config?.(config);
  await writeFile(join(path, 'config.json'), JSON.stringify(config));
  const tokenizer = JSON.parse(await readFile(join(HF, 'tokenizer.json'), 'utf8')) as Tokenizer;
  change.tokenizer?.(tokenizer);
  await writeFile(join(path, 'tokenizer.json'), JSON.stringify(tokenizer));
  await writeFile(
    join(path, 'model.safetensors'),
    change.weights ?? safetensors('model.layers.0.self_attn.k_proj.weight', [128, 384]),
  );
  return path;
}

describe('a pair', () => {
  it.each([
    ['muse-nano', GGUF],
    ['muse-nano-wide', WIDE],
  ])('of %s and its Hugging Face folder fits', async (_, gguf) => {
    const { models, pair } = await checkModels([gguf, HF]);
    expect(models.map(({ verdict }) => verdict)).toEqual(['remote-capable', 'remote-capable']);
    expect(pair).toMatchObject({ fits: true, firstTokenDifference: null });
    expect(pair?.compared.filter(({ same }) => same !== true).map(({ what }) => what)).toEqual(['layers with RoPE']);
    expect(models.map(({ tokenCount }) => tokenCount)).toEqual([4_096, 4_096]);
    // Either order will do.
    expect((await checkModels([HF, gguf])).pair).toEqual(pair);
  });

  const differences: [string, Parameters<typeof changed>[0]][] = [
    ['RoPE base', { config: ({ text_config: t }) => (t['layer_rope_theta'] = [1e4, 1e4, 1e4, 0, 1e4, 1e4, 1e4, 0]) }],
    ['window', { config: ({ text_config: t }) => (t['sliding_window'] = 1024) }],
    [
      'KV heads',
      {
        config: ({ text_config: t }) => (t['num_key_value_heads'] = 3),
        weights: safetensors('model.layers.0.self_attn.k_proj.weight', [192, 384]),
      },
    ],
    [
      'kinds of layers',
      {
        config: ({ text_config: t }) => {
          t['layer_types'] = [...(t['layer_types'] as string[])].reverse();
          t['layer_rope_theta'] = [...(t['layer_rope_theta'] as number[])].reverse();
        },
      },
    ],
    ['vocabulary', { config: ({ text_config: t }) => (t['vocab_size'] = 4097) }],
    [
      'order of tokens',
      {
        tokenizer: ({ model: { vocab } }) => {
          const token = (id: number): string => Object.keys(vocab).find((text) => vocab[text] === id) ?? '';
          const [a, b] = [token(100), token(101)];
          [vocab[a], vocab[b]] = [101, 100];
        },
      },
    ],
  ];
  it.each(differences)('that differs in %s does not fit, and that is what is named', async (what, change) => {
    const { pair } = await checkModels([GGUF, await changed(change)]);
    expect(pair?.fits).toBe(false);
    expect(pair?.compared.filter(({ same }) => same === false).map((row) => row.what)).toEqual([what]);
    if (what === 'order of tokens') expect(pair?.firstTokenDifference?.id).toBe(100);
  });

  it('of two of a kind is refused', async () => {
    await expect(checkModels([GGUF, WIDE])).rejects.toMatchObject({ exitCode: 2 });
    await expect(checkModels([HF, HF])).rejects.toMatchObject({ exitCode: 2 });
  });
});

describe('a Hugging Face folder', () => {
  const cases: [string, 'local only' | 'unsupported', RegExp, Parameters<typeof changed>[0]][] = [
    ['MLA', 'local only', /MLA/, { config: ({ text_config: t }) => (t['kv_lora_rank'] = 512) }],
    ['Mamba', 'local only', /recurrent/, { config: ({ text_config: t }) => (t['mamba_d_state'] = 16) }],
    [
      'an unknown kind of layer',
      'local only',
      /linear_attention/,
      { config: ({ text_config: t }) => ((t['layer_types'] as string[])[0] = 'linear_attention') },
    ],
    ['scaled RoPE', 'local only', /llama3/, { config: ({ text_config: t }) => (t['rope_scaling'] = { rope_type: 'llama3' }) }],
    [
      'YaRN for the layers of one kind',
      'local only',
      /yarn/,
      {
        config: ({ text_config: t }) => {
          t['rope_parameters'] = { full_attention: { rope_theta: 1e6, rope_type: 'yarn' }, sliding_attention: { rope_theta: 1e6 } };
        },
      },
    ],
    [
      'a RoPE base of its own for windows',
      'local only',
      /2 RoPE bases/,
      {
        config: ({ text_config: t }) => {
          delete t['layer_rope_theta'];
          t['rope_parameters'] = { full_attention: { rope_theta: 1e6 }, sliding_attention: { rope_theta: 1e4 } };
        },
      },
    ],
    [
      'the older way to say that',
      'local only',
      /2 RoPE bases/,
      {
        config: ({ text_config: t }) => {
          delete t['layer_rope_theta'];
          Object.assign(t, { rope_theta: 1e6, rope_local_base_freq: 1e4 });
        },
      },
    ],
    ['partial RoPE', 'local only', /0.5 of a head/, { config: ({ text_config: t }) => (t['partial_rotary_factor'] = 0.5) }],
    [
      'RoPE on a global layer',
      'local only',
      /not those with and without/,
      { config: ({ text_config: t }) => ((t['layer_rope_theta'] as number[])[3] = 5e5) },
    ],
    [
      'a quantized KV cache',
      'local only',
      /16-bit/,
      { config: (config) => (config['quantization_config'] = { kv_cache_scheme: { num_bits: 8 } }) },
    ],
    ['SentencePiece', 'local only', /byte-level BPE/, { tokenizer: ({ model }) => (model.type = 'Unigram') }],
    ['a classifier', 'unsupported', /no text/, { config: (config) => (config['architectures'] = ['XForSequenceClassification']) }],
    [
      'weights that do not fit',
      'unsupported',
      /makes 64 elements/,
      { weights: safetensors('model.layers.3.self_attn.k_proj.weight', [64, 384]) },
    ],
  ];
  it.each(cases)('with %s is %s', async (_, verdict, reason, change) => {
    const { models } = await checkModels([await changed(change)]);
    expect(models[0]?.reasons.join('\n')).toMatch(reason);
    expect(models[0]?.verdict).toBe(verdict);
  });

  it('without RoPE in the global layers of another model is told by its flags', async () => {
    const path = await changed({
      config: ({ text_config: t }) => {
        delete t['layer_rope_theta'];
        t['no_rope_layers'] = [1, 1, 1, 0, 1, 1, 1, 0];
      },
    });
    expect((await checkModels([path])).models[0]?.shape).toMatchObject({ ropeBase: 500_000, ropeLayers: 'window' });
  });

  it('may have the same RoPE for each kind of layer', async () => {
    const path = await changed({
      config: ({ text_config: t }) => {
        delete t['layer_rope_theta'];
        t['rope_parameters'] = { full_attention: { rope_theta: 7e4 }, sliding_attention: { rope_theta: 7e4 } };
      },
    });
    const [model] = (await checkModels([path])).models;
    expect(model).toMatchObject({ verdict: 'remote-capable', shape: { ropeBase: 70_000, ropeLayers: 'all' } });
  });

  it('with experts is remote-capable, with a warning', async () => {
    const path = await changed({ config: ({ text_config: t }) => (t['num_local_experts'] = 8) });
    const [model] = (await checkModels([path])).models;
    expect(model?.verdict).toBe('remote-capable');
    expect(model?.notes.join()).toContain('mixture of experts');
  });

  it('with code of its own is told of', async () => {
    const path = await changed({ config: (config) => (config['auto_map'] = { AutoModel: 'x.Y' }) });
    expect((await checkModels([path])).models[0]?.notes.join()).toContain('never runs');
  });

  const damaged: [string, string, Buffer][] = [
    ['a config that is no JSON', 'config.json', Buffer.from('{')],
    ['a config of another shape', 'config.json', Buffer.from('{"model_type": 5}')],
    ['a tokenizer of another shape', 'tokenizer.json', Buffer.from('{"model": {"vocab": 7}}')],
    ['a token with an absurd id', 'tokenizer.json', Buffer.from('{"model": {"vocab": {"a": 99999999999}}}')],
    ['weights that are no safetensors', 'model.safetensors', Buffer.alloc(64, 0xff)],
    ['weights that are cut off', 'model.safetensors', safetensors('x', [1]).subarray(0, 20)],
  ];
  it.each(damaged)('with %s is refused', async (_, name, bytes) => {
    const path = await changed({});
    await writeFile(join(path, name), bytes);
    await expect(checkModels([path])).rejects.toMatchObject({ code: 'MODEL_LOAD_FAILED' });
  });

  it('has every tensor within its file', async () => {
    const header = safetensors('x', [1]).toString('latin1').replace('[0,0]', '[0,9]');
    const path = join(folder.path, 'x.safetensors');
    await writeFile(path, Buffer.from(header, 'latin1'));
    expect(() => readSafetensorsHeader(path)).toThrow(/truncated/);
  });
});

describe('muser models check', () => {
  it('says what a file is, with code 0', async () => {
    const run = await runCli(['models', 'check', GGUF, '--json']);
    expect(run.exitCode).toBe(0);
    expect(JSON.parse(run.stdout)).toMatchObject({ models: [{ verdict: 'remote-capable', reasons: [] }], pair: null });
  });

  it('takes the name of a model', async () => {
    const run = await runCli(['models', 'check', 'muse-nano']);
    expect(run.exitCode).toBe(0);
    expect(run.stdout.match(/^remote-capable/gm)).toHaveLength(3);
  });

  it('takes the OWNER/NAME of a model in the Hugging Face cache', async () => {
    const cache = join(folder.path, 'hub', 'models--someone--nano');
    const commit = 'a'.repeat(40);
    await mkdir(join(cache, 'refs'), { recursive: true });
    await mkdir(join(cache, 'snapshots'));
    await writeFile(join(cache, 'refs', 'main'), commit);
    await rename(await changed({}), join(cache, 'snapshots', commit));
    const env = { HF_HUB_CACHE: join(folder.path, 'hub') };
    const run = await runCli(['models', 'check', GGUF, 'someone/nano'], { env });
    expect(run).toMatchObject({ exitCode: 0, stdout: expect.stringContaining('The pair fits') });
    const other = await runCli(['models', 'check', 'someone/else'], { env });
    expect(other).toMatchObject({ exitCode: 2, stderr: expect.stringContaining('models pin someone/else@main') });
  });

  it('shows what differs, with code 1', async () => {
    const path = await changed({ config: ({ text_config: t }) => (t['sliding_window'] = 256) });
    const run = await runCli(['models', 'check', GGUF, path]);
    expect(run.exitCode).toBe(1);
    expect(run.stdout).toMatch(/window +512 +256 +DIFFERENT/);
  });

  it('of a damaged file ends with code 1', async () => {
    const path = join(folder.path, 'x.gguf');
    await copyFile(join(HF, 'config.json'), path);
    const run = await runCli(['models', 'check', path, '--json']);
    expect(run.exitCode).toBe(1);
    expect(JSON.parse(run.stdout)).toMatchObject({ error: { code: 'MODEL_LOAD_FAILED' } });
  });

  it.each(['nothing-here', '/no/such/file', 'no/such-model'])('of %j is wrong usage', async (model) => {
    expect(await runCli(['models', 'check', model])).toMatchObject({ exitCode: 2, stdout: '' });
  });

  it('of a folder without a model is wrong usage', async () => {
    expect(await runCli(['models', 'check', folder.path])).toMatchObject({ exitCode: 2, stdout: '' });
  });
});
