import { statSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import {
  kvBytesHeld,
  kvBytesSent,
  planProducer,
  type PlannedModel,
  type PlanInput,
} from '../../src/producer-plan/plan.js';
import { findPlannedModel } from '../../src/producer-plan/models.js';
import { runCli } from '../support/cli.js';

const GIB = 2 ** 30;
const HF = fileURLToPath(new URL('../../../../models/muse-nano/hf', import.meta.url));
const model = await findPlannedModel('muse-glimmer-30b', {});
const input: PlanInput = { model, memoryBytes: 128 * GIB, promptTokens: null, requests: 4 };

describe('KV of the 30-B model', () => {
  // The figures of the published geometry: 13 x N x 1,024 + 39 x min(N, 2,048) x 1,024.
  it.each([
    [2_048, 109],
    [8_192, 191],
    [32_768, 518],
    [65_536, 954],
    [131_072, 1_827],
  ])('of %i tokens has %i MB', (tokens, megabytes) => {
    expect(Math.round(kvBytesSent(model, tokens) / 1e6)).toBe(megabytes);
  });

  it('held by vLLM is what is sent, the tokens in flight, and less than a block a group more', () => {
    const tokens = 65_536;
    const inFlight = 39 * (2_048 - 1) * 1_024;
    const more = kvBytesHeld(model, tokens) - kvBytesSent(model, tokens) - inFlight;
    expect(more).toBeGreaterThan(0);
    expect(more).toBeLessThanOrEqual(13 * 4 * 2 * 16 * 1_024);
  });

  it('of a short prompt does not hold a whole window', () => {
    expect(kvBytesHeld(model, 16)).toBe((13 + 39 * 2) * 16 * 1_024);
  });
});

describe('the plan', () => {
  // fault: host-out-of-memory
  it('divides all of the memory', () => {
    const { memory } = planProducer(input);
    expect(Object.values(memory).reduce((sum, bytes) => sum + bytes, 0)).toBe(input.memoryBytes);
    for (const bytes of Object.values(memory)) expect(bytes).toBeGreaterThan(0);
  });

  it('of the 30-B model fits a GB10 with prompts of any length', () => {
    const plan = planProducer(input);
    expect(plan).toMatchObject({ fits: true, problem: null, promptTokens: 131_072, gpuMemoryUtilisation: 0.7 });
    expect(plan.memory.headroom).toBeGreaterThan(24 * GIB);
    const settings = Object.fromEntries(plan.engine.map(({ name, value }) => [name, value]));
    expect(settings).toMatchObject({
      kv_cache_memory_bytes: String(plan.memory.kvCache),
      gpu_memory_utilization: '0.70',
      kv_cache_dtype: 'bfloat16',
      max_num_batched_tokens: '1024',
      max_model_len: '131072',
      max_num_seqs: '4',
    });
    for (const { reason } of [...plan.engine, ...plan.environment]) expect(reason).not.toBe('');
  });

  it('has room in the KV cache for every request at once and one prompt more', () => {
    const plan = planProducer({ ...input, promptTokens: 40_000, requests: 3 });
    const kept = 13 * 40_000 * 1_024;
    expect(plan.memory.kvCache).toBe(3 * kvBytesHeld(model, 40_000) + kept);
    expect(plan.prefixCacheTokens).toBe(40_000);
  });

  it('never takes more than the model allows', () => {
    expect(planProducer({ ...input, promptTokens: 131_073 }).promptTokens).toBe(131_072);
  });

  // fault: slow-kernel-chosen
  it('turns the slow kernel off for NVFP4 weights only', () => {
    const names = (nvfp4: boolean): string[] =>
      planProducer({ ...input, model: { ...model, nvfp4 } }).environment.map(({ name }) => name);
    expect(names(true)).toContain('VLLM_DISABLED_KERNELS');
    expect(names(false)).not.toContain('VLLM_DISABLED_KERNELS');
  });

  it('raises the utilisation with the need, to 0.80 at most', () => {
    const heavy = (gib: number) => planProducer({ ...input, model: { ...model, weightBytes: gib * GIB } });
    expect(heavy(79).gpuMemoryUtilisation).toBe(0.73);
    expect(heavy(79).fits).toBe(true);
    expect(heavy(100)).toMatchObject({ fits: false, gpuMemoryUtilisation: 0.8 });
  });

  it('that does not fit names the longest prompt that does, and one step more does not', () => {
    const small = { ...input, memoryBytes: 48 * GIB };
    const { fits, problem } = planProducer(small);
    expect(fits).toBe(false);
    const tokens = Number(/prompts of (\d+) tokens would fit/.exec(problem ?? '')?.[1]);
    expect(planProducer({ ...small, promptTokens: tokens }).fits).toBe(true);
    expect(planProducer({ ...small, promptTokens: tokens + 1_024 }).fits).toBe(false);
  });

  it('that fits with no prompt at all says so', () => {
    expect(planProducer({ ...input, memoryBytes: 16 * GIB }).problem).toContain('no prompt length fits');
  });

  it('counts the layers that a block group is filled up with', () => {
    const uneven: PlannedModel = { ...model, layers: ['window', 'window', 'window', 'global', 'global'] };
    // Two global layers make a group of two, three window layers two such groups.
    expect(kvBytesHeld(uneven, 16)).toBe((2 * 1 + 4 * 2) * 16 * 1_024);
    const global: PlannedModel = { ...model, layers: ['global', 'global'], windowTokens: 0 };
    expect(kvBytesHeld(global, 32)).toBe(2 * 2 * 16 * 1_024);
  });
});

describe('muser producer plan', () => {
  const plan = (...args: string[]) => runCli(['producer', 'plan', ...args]);

  it('reads the geometry and the weights of a folder', async () => {
    const run = await plan('--memory', '16GiB', '--model', HF, '--json');
    expect(run).toMatchObject({ exitCode: 0, stderr: '' });
    const { size } = statSync(`${HF}/model.safetensors`);
    const result = JSON.parse(run.stdout) as { memory: { weights: number }; kvBytesSent: number; promptTokens: number };
    expect(result.memory.weights).toBe(size);
    expect(result.promptTokens).toBe(32_768);
    expect(result.kvBytesSent).toBe((2 * 32_768 + 6 * 512) * 512);
  });

  it('takes a manifest by name', async () => {
    const run = await plan('--memory', '16GiB', '--model', 'muse-nano', '--json');
    expect(JSON.parse(run.stdout)).toMatchObject({ model: 'muse-nano', fits: true });
  });

  it('shows every setting with its reason', async () => {
    const { stdout, exitCode } = await plan('--memory', '128GiB', '--model', 'muse-glimmer-30b');
    expect(exitCode).toBe(0);
    expect(stdout).toContain('VLLM_DISABLED_KERNELS=FlashInferCuteDslNvFp4W4A16LinearKernel');
    expect(stdout).toContain('The plan fits.');
  });

  it('ends with code 1 when it does not fit', async () => {
    const run = await plan('--memory', '32GiB', '--model', 'muse-glimmer-30b');
    expect(run.exitCode).toBe(1);
    expect(run.stdout).toContain('does not fit');
  });

  it.each([
    ['128', /from 1GiB to 64TiB/],
    ['128 gigs', /from 1GiB/],
    ['-5GiB', /from 1GiB/],
    ['1e9GiB', /from 1GiB/],
  ])('refuses %s of memory', async (memory, message) => {
    const run = await plan(`--memory=${memory}`, '--model', HF);
    expect(run).toMatchObject({ exitCode: 2, stdout: '' });
    expect(run.stderr).toMatch(message);
  });
});
