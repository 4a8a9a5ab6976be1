import { availableParallelism } from 'node:os';
import { fields } from '@muser/service-kit';
import { z } from 'zod';

/** What the decoder's environment variables begin with. */
export const ENV_PREFIX = 'MUSER_DECODER_';

const milliseconds = z.number().int().min(1).max(3_600_000);
const hostPort = z.string().regex(/^(\[[0-9a-fA-F:]+\]|[^:\s]+):\d{1,5}$/, 'must be "host:port"');

/** Which way a request's prompt is prefilled; `auto` takes the one with the smaller predicted time to first token. */
export const prefillModeSchema = z.enum(['local', 'remote', 'auto']);
export type PrefillMode = z.infer<typeof prefillModeSchema>;

/** The decoder's configuration file. docs/CONFIG.md is generated from this schema. */
export const decoderConfigSchema = z.strictObject({
  stateDir: fields.stateDir(),
  host: fields.host('Loopback address of the HTTP API.'),
  port: fields.port('Port of the HTTP API.'),
  model: z.string().min(1).describe('Path of the GGUF file.'),
  contextTokens: z
    .number()
    .int()
    .min(64)
    .max(1_048_576)
    .default(32_768)
    .meta({ unit: 'tokens', description: 'KV cells shared by all sequences.' }),
  maxSequences: z.number().int().min(1).max(64).default(4).describe('Requests that run at once.'),
  chunkTokens: z
    .number()
    .int()
    .min(1)
    .max(8_192)
    .default(512)
    .meta({ unit: 'tokens', description: 'Tokens of one prefill step.' }),
  threads: z
    .number()
    .int()
    .min(1)
    .max(512)
    .default(Math.max(1, Math.floor(availableParallelism() / 2)))
    .describe("CPU threads of the engine; all engines of a machine share its cores (default: half of this machine's)."),
  flashAttention: z.boolean().default(true).describe('Flash attention; off gives bit-exact hand-offs.'),
  kvType: z.enum(['f16', 'q8_0']).default('f16').describe('Type of the KV cache; q8_0 needs flash attention.'),
  answerTokens: z.number().int().min(1).max(131_072).default(2_048).meta({
    unit: 'tokens',
    description: 'Longest answer of a request that names no limit; never more than the context has left.',
  }),
  queueLimit: z
    .number()
    .int()
    .min(0)
    .max(10_000)
    .default(64)
    .describe('Requests that may wait for room in the engine.'),
  queueDeadlineMs: milliseconds
    .default(300_000)
    .meta({ unit: 'milliseconds', description: 'Longest wait for room in the engine.' }),
  keptTokens: z.number().int().min(0).max(1_048_576).nullable().default(null).meta({
    unit: 'tokens',
    description:
      'Prompt tokens of cancelled and answered requests whose KV stays for a request that begins with them, as long as running ones do not need the room. null: half of contextTokens; 0: none.',
  }),
  coordinator: hostPort
    .nullable()
    .default(null)
    .describe('gRPC address of the coordinator; null means that every prefill is local.'),
  prefill: prefillModeSchema.default('auto').describe('Way of requests that name none.'),
  transferDeadlineMs: milliseconds.default(600_000).meta({
    unit: 'milliseconds',
    description: 'Longest remote prefill: queue, transfer, and every attempt after one that failed.',
  }),
  stallTimeoutMs: milliseconds
    .default(15_000)
    .meta({ unit: 'milliseconds', description: 'Longest silence of a producer during a transfer.' }),
  checkedTransfers: z
    .number()
    .min(0)
    .max(1)
    .default(0.05)
    .describe(
      'Share of remote prefills of which the last 16 tokens are computed here, too, and compared. The first one of every producer always is. 0: none.',
    ),
  drainMs: milliseconds
    .default(10_000)
    .meta({ unit: 'milliseconds', description: 'How long running requests may go on after SIGTERM.' }),
  logLevel: fields.logLevel(),
  exitWithParent: fields.exitWithParent(),
});
export type DecoderConfig = Readonly<z.infer<typeof decoderConfigSchema>>;
