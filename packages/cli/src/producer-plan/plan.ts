import type { LayerKind } from '@muser/protocol';

const MIB = 2 ** 20;
const GIB = 2 ** 30;

/** Tokens of one prefill step. */
export const STEP_TOKENS = 1_024;
/** Tokens of a block of vLLM's paged KV cache on a GPU. */
const BLOCK_TOKENS = 16;
/** vLLM schedules a step while the one before it computes, so blocks of two steps are held. */
const STEPS_IN_FLIGHT = 2;
const K_AND_V = 2;
const ELEMENT_BYTES = 2;
const LOWEST_UTILISATION = 0.7;
const HIGHEST_UTILISATION = 0.8;
/**
 * CUDA context, kernels' workspaces, CUDA graphs and the activations of one step. An estimate that was not measured on a
 * GB10; the start-up's own figures are in the log.
 */
const ENGINE_OVERHEAD_BYTES = 5 * GIB;
/** The producer (Node), vLLM's Python processes, and their libraries. */
const PROCESS_BYTES = 6 * GIB;
/** Pinned memory of one transfer, beside its window rows. */
const PINNED_BYTES_PER_REQUEST = 32 * MIB;
/** Share of the memory that stays with the system: allocations failed on a 128-GiB GB10 with 22 GiB still available. */
const HEADROOM_SHARE = 24 / 128;
const LEAST_HEADROOM_BYTES = 2 * GIB;

/** What the plan needs to know of a model. */
export interface PlannedModel {
  name: string;
  weightBytes: number;
  layers: readonly LayerKind[];
  kvHeads: number;
  headDimension: number;
  /** 0 without window layers. */
  windowTokens: number;
  /** Longest text that the model was made for. */
  contextTokens: number;
  /** Weights of 4 bits in NVIDIA's format. */
  nvfp4: boolean;
}

export interface PlanInput {
  model: PlannedModel;
  /** Of the whole machine; on a GB10 processor and GPU share it. */
  memoryBytes: number;
  /** Longest prompt; null takes the longest that the model allows. */
  promptTokens: number | null;
  /** Prefills that run at once. */
  requests: number;
}

export interface Setting {
  name: string;
  value: string;
  reason: string;
}

/** Bytes by what they are for. Their sum is the machine's memory. */
export type MemoryShares = {
  weights: number;
  engineOverhead: number;
  kvCache: number;
  staging: number;
  processes: number;
  /** What is left for the system; a plan that leaves less than `leastHeadroom` does not fit. */
  headroom: number;
};

export interface ProducerPlan {
  model: string;
  fits: boolean;
  /** Why it does not fit, and what would. */
  problem: string | null;
  promptTokens: number;
  requests: number;
  memory: MemoryShares;
  leastHeadroom: number;
  /** Bytes of KV that one request of the longest prompt sends. */
  kvBytesSent: number;
  /** Bytes that vLLM's block tables need for it while it runs. */
  kvBytesHeld: number;
  /** Tokens that the prefix cache can keep beside the running requests, in global layers. */
  prefixCacheTokens: number;
  gpuMemoryUtilisation: number;
  /** Variables of the producer's configuration. */
  producer: Setting[];
  /** What the producer tells vLLM; nothing to be set by hand. */
  engine: Setting[];
  /** Variables that vLLM reads. */
  environment: Setting[];
}

/** The memory plan of one producer: pure arithmetic over the model's geometry. */
export function planProducer(input: PlanInput): ProducerPlan {
  const longest = input.model.contextTokens;
  const promptTokens = Math.min(input.promptTokens ?? longest, longest);
  const wanted = memoryShares(input, promptTokens);
  const problem = problemOf(input, wanted, promptTokens);
  const utilisation = utilisationOf(input, wanted.memory);
  return {
    model: input.model.name,
    fits: problem === null,
    problem,
    promptTokens,
    requests: input.requests,
    ...wanted,
    kvBytesSent: kvBytesSent(input.model, promptTokens),
    kvBytesHeld: kvBytesHeld(input.model, promptTokens),
    prefixCacheTokens: promptTokens,
    gpuMemoryUtilisation: utilisation,
    producer: producerSettings(input, promptTokens, wanted, utilisation),
    engine: engineSettings(input, promptTokens, wanted.memory.kvCache, utilisation),
    environment: environmentSettings(input.model),
  };
}

/** N tokens: every one in global layers, the last window of them in window layers. */
export function kvBytesSent(model: PlannedModel, tokens: number): number {
  const { globals, windows } = layerCounts(model);
  return (globals * tokens + windows * Math.min(tokens, model.windowTokens)) * rowBytes(model);
}

/** Whole blocks; window layers hold the window, what is in flight, and one block because windows begin within blocks. */
export function kvBytesHeld(model: PlannedModel, tokens: number): number {
  const { groupLayers, windowGroups, globalGroups } = blockGroups(model);
  const held = Math.min(model.windowTokens - 1 + STEPS_IN_FLIGHT * STEP_TOKENS, tokens);
  const blocks = globalGroups * Math.ceil(tokens / BLOCK_TOKENS) + windowGroups * (Math.ceil(held / BLOCK_TOKENS) + 1);
  return blocks * groupLayers * BLOCK_TOKENS * rowBytes(model);
}

/** Bytes of one token's K and V in one layer. */
function rowBytes(model: PlannedModel): number {
  return model.kvHeads * model.headDimension * K_AND_V * ELEMENT_BYTES;
}

function layerCounts({ layers }: PlannedModel): { globals: number; windows: number } {
  const windows = layers.filter((kind) => kind === 'window').length;
  return { globals: layers.length - windows, windows };
}

/** vLLM's block tables: groups of equally many layers of one kind, of which the last may be filled up. */
function blockGroups(model: PlannedModel): { groupLayers: number; globalGroups: number; windowGroups: number } {
  const { globals, windows } = layerCounts(model);
  const kinds = [globals, windows].filter((count) => count > 0);
  const [least, most] = [Math.min(...kinds), Math.max(...kinds)];
  const groupLayers = most < least * 1.25 ? most : least;
  return {
    groupLayers,
    globalGroups: Math.ceil(globals / groupLayers),
    windowGroups: Math.ceil(windows / groupLayers),
  };
}

/** Rows of window layers that one transfer may hold until they are sent. */
function windowRowBytes(model: PlannedModel, promptTokens: number): number {
  return layerCounts(model).windows * Math.min(promptTokens, model.windowTokens) * rowBytes(model);
}

function memoryShares(input: PlanInput, promptTokens: number): { memory: MemoryShares; leastHeadroom: number } {
  const { model, requests, memoryBytes } = input;
  const { globals } = layerCounts(model);
  // One prompt of the greatest length stays in the prefix cache, so that its next turn computes only what is new.
  const kvCache = requests * kvBytesHeld(model, promptTokens) + globals * promptTokens * rowBytes(model);
  const staging = requests * (windowRowBytes(model, promptTokens) + PINNED_BYTES_PER_REQUEST);
  const shares = {
    weights: model.weightBytes,
    engineOverhead: ENGINE_OVERHEAD_BYTES,
    kvCache,
    staging,
    processes: PROCESS_BYTES,
  };
  const used = Object.values(shares).reduce((sum, bytes) => sum + bytes, 0);
  return {
    memory: { ...shares, headroom: memoryBytes - used },
    leastHeadroom: Math.max(LEAST_HEADROOM_BYTES, Math.round(memoryBytes * HEADROOM_SHARE)),
  };
}

function engineShare({ memoryBytes }: PlanInput, memory: MemoryShares): number {
  return (memory.weights + memory.engineOverhead + memory.kvCache) / memoryBytes;
}

function utilisationOf(input: PlanInput, memory: MemoryShares): number {
  const share = Math.ceil(engineShare(input, memory) * 100) / 100;
  return Math.min(HIGHEST_UTILISATION, Math.max(LOWEST_UTILISATION, share));
}

function planFits(input: PlanInput, promptTokens: number): boolean {
  const { memory, leastHeadroom } = memoryShares(input, promptTokens);
  return memory.headroom >= leastHeadroom && engineShare(input, memory) <= HIGHEST_UTILISATION;
}

function problemOf(
  input: PlanInput,
  { memory, leastHeadroom }: { memory: MemoryShares; leastHeadroom: number },
  promptTokens: number,
): string | null {
  if (planFits(input, promptTokens)) return null;
  const what =
    memory.headroom < leastHeadroom
      ? `${gib(memory.headroom)} GiB would be left for the system, it needs ${gib(leastHeadroom)} GiB`
      : `the engine would take ${Math.ceil(engineShare(input, memory) * 100)} % of the memory, at most ${HIGHEST_UTILISATION * 100} % are safe`;
  const tokens = longestPromptThatFits(input, promptTokens);
  if (tokens > 0) return `${what}; prompts of ${tokens} tokens would fit`;
  return `${what}; no prompt length fits: use fewer requests at once, a smaller model, or more memory`;
}

/** Multiples of a step; 0 when not even one fits. */
function longestPromptThatFits(input: PlanInput, promptTokens: number): number {
  let [low, high] = [0, Math.floor(promptTokens / STEP_TOKENS)];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (planFits(input, middle * STEP_TOKENS)) low = middle;
    else high = middle - 1;
  }
  return low * STEP_TOKENS;
}

function gib(bytes: number): string {
  return (bytes / GIB).toFixed(1);
}

function producerSettings(
  { model, requests }: PlanInput,
  promptTokens: number,
  { memory, leastHeadroom }: { memory: MemoryShares; leastHeadroom: number },
  utilisation: number,
): Setting[] {
  const settings: [string, string | number, string][] = [
    ['CHUNK_TOKENS', STEP_TOKENS, 'tokens of one step: max_num_batched_tokens'],
    ['MAX_PROMPT_TOKENS', promptTokens, 'longest prompt that is accepted: max_model_len'],
    ['MAX_CONCURRENT', requests, 'prefills at once: max_num_seqs'],
    ['VLLM_KV_CACHE_BYTES', memory.kvCache, 'kv_cache_memory_bytes'],
    ['VLLM_GPU_MEMORY_UTILIZATION', utilisation.toFixed(2), 'gpu_memory_utilization'],
    [
      'VLLM_WINDOW_STAGING_BYTES',
      Math.max(MIB, requests * windowRowBytes(model, promptTokens)),
      'one window of rows for each prefill at once, which wait to be sent',
    ],
    [
      'VLLM_MEMORY_FLOOR_BYTES',
      Math.round(leastHeadroom / 2),
      'nothing is taken on below half of what belongs to the system: then something else has taken it',
    ],
  ];
  return settings.map(([name, value, reason]) => ({ name: `MUSER_PRODUCER_${name}`, value: String(value), reason }));
}

function engineSettings(input: PlanInput, promptTokens: number, kvCache: number, utilisation: number): Setting[] {
  const { globals, windows } = layerCounts(input.model);
  return [
    {
      name: 'kv_cache_memory_bytes',
      value: String(kvCache),
      reason:
        'explicit, because a size found by profiling fills the memory that the system shares with the GPU, and the whole machine freezes until it is power-cycled (vLLM #46307, #56824)',
    },
    {
      name: 'gpu_memory_utilization',
      value: utilisation.toFixed(2),
      reason: 'what must be free at the start; 0.70 to 0.80 at most, the default of 0.92 freezes a GB10',
    },
    {
      name: 'kv_cache_dtype',
      value: 'bfloat16',
      reason:
        'the first request kills the engine with fp8 on a GB10 (vLLM #50331), and only 16-bit rows are handed over',
    },
    {
      name: 'max_num_batched_tokens',
      value: String(STEP_TOKENS),
      reason: 'a cancelled request frees its blocks within one step, so steps are short; KV leaves after each of them',
    },
    {
      name: 'max_model_len',
      value: String(promptTokens),
      reason:
        'the prompt limit: the last token is left to the decoder, and vLLM generates one in its place that is thrown away',
    },
    {
      name: 'max_num_seqs',
      value: String(input.requests),
      reason: 'the KV cache is sized for so many prompts of the greatest length at once: no preemption',
    },
    {
      name: 'enable_prefix_caching',
      value: 'true',
      reason: 'the next turn of a chat computes only what is new; hits are salted by decoder',
    },
    {
      name: 'disable_hybrid_kv_cache_manager',
      value: 'false',
      reason:
        windows > 0
          ? `on, so that the ${windows} window layers keep ${input.model.windowTokens} tokens and not all (${globals} layers keep all)`
          : 'all layers keep all tokens, so it changes nothing',
    },
    {
      name: 'cudagraph_mode',
      value: 'PIECEWISE',
      reason: 'rows are read after each layer, which the replay of a full graph would skip; the connector asks for it',
    },
    {
      name: 'limit_mm_per_prompt',
      value: '{"image": 0, "video": 0}',
      reason: 'text only: no memory is set aside for images',
    },
  ];
}

function environmentSettings(model: PlannedModel): Setting[] {
  const settings: Setting[] = [
    { name: 'HF_HUB_OFFLINE', value: '1', reason: 'weights come from the verified folder alone' },
    { name: 'VLLM_NO_USAGE_STATS', value: '1', reason: 'nothing is reported to anybody' },
  ];
  if (!model.nvfp4) return settings;
  return [
    {
      name: 'VLLM_DISABLED_KERNELS',
      value: 'FlashInferCuteDslNvFp4W4A16LinearKernel',
      reason:
        'vLLM picks this kernel for 4-bit activations too on a GB10, which costs 31 % of the prefill rate (vLLM #55397)',
    },
    ...settings,
  ];
}
