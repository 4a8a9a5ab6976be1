import { availableParallelism } from 'node:os';
import { fileURLToPath } from 'node:url';

import { MAX_PROMPT_TOKENS } from '@muser/protocol';
import { fields } from '@muser/service-kit';
import { z } from 'zod';

/** What the producer's environment variables begin with. */
export const ENV_PREFIX = 'MUSER_PRODUCER_';

const MIB = 1 << 20;
const milliseconds = z.number().int().min(1).max(3_600_000);
const bytes = z
  .number()
  .int()
  .min(MIB)
  .max(2 ** 40);

const budgetsSchema = z.strictObject({
  stagingBytesPerTransfer: bytes.default(256 * MIB).meta({
    unit: 'bytes',
    description: 'Computed rows of one transfer that may wait to be sent. Compute pauses when they are full.',
  }),
  stagingBytes: bytes
    .default(1024 * MIB)
    .meta({ unit: 'bytes', description: 'The same for all transfers together; half of it for those of one decoder.' }),
});

/** Where scripts/install-vllm.mjs puts vLLM. */
export const VLLM_PYTHON = fileURLToPath(new URL('../../../.cache/vllm/env/bin/python', import.meta.url));

const parallel = z.number().int().min(1).max(64).default(1);

const vllmSchema = z.strictObject({
  python: z
    .string()
    .min(1)
    .nullable()
    .default(null)
    .describe('Interpreter of an environment that has vLLM. null: the one that `npm run vllm` installs.'),
  kvCacheBytes: bytes.default(1024 * MIB).meta({
    unit: 'bytes',
    description: "vLLM's KV cache on each rank. Explicit, because measuring free memory has wedged GB10 hosts.",
  }),
  gpuMemoryUtilization: z
    .number()
    .min(0.05)
    .max(0.95)
    .nullable()
    .default(null)
    .describe("Share of the GPU's memory that vLLM may use in all; null is vLLM's own. At most 0.8 on a GB10."),
  windowStagingBytes: bytes.nullable().default(null).meta({
    unit: 'bytes',
    description: 'Window rows that a rank may hold until they are sent. null: as many as budgets.stagingBytes.',
  }),
  enforceEager: z.boolean().default(false).describe('No compilation and no CUDA graphs. Always so on a CPU.'),
  attentionBackend: z.string().min(1).max(64).nullable().default(null).describe("null is vLLM's own choice."),
  sharedPrefixCache: z
    .boolean()
    .default(false)
    .describe(
      "Decoders share the prefix cache. Whoever can time an answer then learns whether another decoder's prompt began alike.",
    ),
  tensorParallel: parallel.describe('Ranks that share the heads of a layer.'),
  pipelineParallel: parallel.describe('Ranks that share the layers.'),
  startLimitMs: milliseconds
    .default(900_000)
    .meta({ unit: 'milliseconds', description: 'From the start of the worker until it is ready.' }),
  hangLimitMs: milliseconds.default(20_000).meta({
    unit: 'milliseconds',
    description: 'A worker that is silent for so long, or makes no step for three times as long, is restarted.',
  }),
  idleUnloadMs: z.number().int().min(1).max(86_400_000).nullable().default(null).meta({
    unit: 'milliseconds',
    description: 'The model is unloaded after so long without a request; the next one loads it again. null: never.',
  }),
  memoryFloorBytes: z
    .number()
    .int()
    .min(0)
    .max(2 ** 40)
    .default(256 * MIB)
    .meta({ unit: 'bytes', description: 'Nothing is taken on while less memory than this is free.' }),
});

/** The producer's configuration file. docs/CONFIG.md is generated from this schema. */
export const producerConfigSchema = z.strictObject({
  stateDir: fields.stateDir(),
  host: fields.host('Address that decoders and the coordinator dial.'),
  port: fields.port('Its port.'),
  name: z.string().min(1).max(128).default('producer').describe('What logs call this producer.'),
  backend: z.enum(['llama', 'vllm']).default('llama').describe('Prefill engine.'),
  model: z.string().min(1).describe('Path of the weights: a GGUF file for llama, the folder of a checkpoint for vllm.'),
  chunkTokens: z
    .number()
    .int()
    .min(1)
    .max(8_192)
    .default(512)
    .meta({ unit: 'tokens', description: 'Tokens of one prefill step.' }),
  maxPromptTokens: z
    .number()
    .int()
    .min(2)
    .max(MAX_PROMPT_TOKENS)
    .default(32_768)
    .meta({ unit: 'tokens', description: 'Longest prompt that is accepted.' }),
  maxConcurrent: z.number().int().min(1).max(64).default(1).describe('Prefills that compute at once.'),
  queueLimit: z.number().int().min(0).max(10_000).default(16).describe('Transfers that may wait for their turn.'),
  threads: z
    .number()
    .int()
    .min(1)
    .max(512)
    .default(Math.max(1, Math.floor(availableParallelism() / 2)))
    .describe("CPU threads of the engine; all engines of a machine share its cores (default: half of this machine's)."),
  flashAttention: z.boolean().default(true).describe('Flash attention; off gives bit-exact hand-offs.'),
  kvType: z.enum(['f16', 'q8_0']).default('f16').describe('Type of the KV cache; q8_0 needs flash attention.'),
  vllm: vllmSchema.prefault({}).describe('Of the vllm backend alone.'),
  budgets: budgetsSchema.prefault({}).describe('Memory limits.'),
  drainMs: milliseconds
    .default(20_000)
    .meta({ unit: 'milliseconds', description: 'How long running transfers may go on after SIGTERM.' }),
  pacing: z.number().positive().max(1e9).nullable().default(null).meta({
    unit: 'tokens/s',
    description: 'Prefill no faster than this; for tests and benchmarks. null does not limit.',
  }),
  logLevel: fields.logLevel(),
  exitWithParent: fields.exitWithParent(),
});
export type ProducerConfig = Readonly<z.infer<typeof producerConfigSchema>>;
