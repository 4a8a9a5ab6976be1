import type { ResultKind } from '@muser/service-kit';
import { z } from 'zod';

/** What is shown of a record. The producer's own schema is the whole of it and has checked it. */
const side = z.looseObject({
  backend: z.string(),
  version: z.string(),
  model: z.string(),
  modelDigest: z.string(),
  weights: z.string(),
  cacheLayout: z.string(),
});
const figures = z.looseObject({ cosine: z.number(), distance: z.number(), maxDifference: z.number() });
const limits = z.looseObject({ distance: z.number() });

export const recordSchema = z.object({
  signer: z.enum(['node', 'local']),
  nodeId: z.string(),
  record: z.looseObject({
    madeAt: z.string(),
    producer: side,
    reference: side,
    prompts: z.array(
      z.looseObject({
        tokens: z.number(),
        answer: z
          .looseObject({
            logitDifference: z.number(),
            sameFirstToken: z.boolean(),
            equalTokens: z.number(),
            comparedTokens: z.number(),
          })
          .nullable(),
        producerSpeed: z.number().nullable(),
        referenceSpeed: z.number().nullable(),
      }),
    ),
    layers: z.array(
      z.looseObject({
        layer: z.number(),
        kind: z.string(),
        k: figures,
        v: figures,
        limits: z.looseObject({ k: limits, v: limits }),
      }),
    ),
    thresholds: z.looseObject({
      producer: z.string(),
      reference: z.string(),
      basis: z.enum(['measured', 'published']),
      exact: z.boolean(),
    }),
    verdict: z.enum(['passed', 'failed']),
    failures: z.array(z.string()),
    cause: z
      .looseObject({
        layer: z.number(),
        kinds: z.array(z.string()),
        promptTokens: z.number(),
        cause: z.string(),
        detail: z.string(),
      })
      .nullable(),
  }),
});
export type SignedRecord = z.infer<typeof recordSchema>;

const fileSchema = recordSchema.pick({ record: true }).extend({ signature: z.looseObject({}) });

/** A file that a new record may replace. The producer looks closer. */
export const RECORD_FILE: ResultKind = {
  what: 'the record of a qualification',
  maxBytes: 1 << 20,
  isEarlier: (text) => {
    try {
      return fileSchema.safeParse(JSON.parse(text)).success;
    } catch {
      return false;
    }
  },
};
