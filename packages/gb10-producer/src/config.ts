import { availableParallelism } from 'node:os';

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
  stagingBytes: bytes.default(1024 * MIB).meta({ unit: 'bytes', description: 'The same for all transfers together.' }),
});

/** The producer's configuration file. docs/CONFIG.md is generated from this schema. */
export const producerConfigSchema = z.strictObject({
  stateDir: fields.stateDir(),
  host: fields.host('Address that decoders and the coordinator dial.'),
  port: fields.port('Its port.'),
  name: z.string().min(1).max(128).default('producer').describe('What logs call this producer.'),
  backend: z.enum(['llama']).default('llama').describe('Prefill engine.'),
  model: z.string().min(1).describe('Path of the weights: a GGUF file for the llama backend.'),
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
