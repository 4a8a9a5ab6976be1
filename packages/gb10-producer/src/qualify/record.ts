import { MuserError, nodeIdOf, type SigningKey, verifyingKey } from '@muser/protocol';
import type { ResultKind } from '@muser/service-kit';
import { z } from 'zod';

import { canonicalJson, type Json } from './canonical-json.js';

const DOMAIN = 'muser/1/qualification';
/** A record of 255 layers has a tenth of this. */
export const MAX_RECORD_BYTES = 1 << 20;

const MAX_LAYERS = 256;
const text = z.string().max(2_000);
const name = z.string().max(512);
const count = z
  .number()
  .int()
  .nonnegative()
  .max(2 ** 53);
const share = z.number().min(0).max(1);
const measure = z.number().nonnegative();
const hex = z.string().regex(/^[0-9a-f]{64}$/);
const time = z.iso.datetime();

const CAUSES = [
  'k-permutation',
  'exchanged',
  'head-order',
  'position-shift',
  'rope-base',
  'rope',
  'window',
  'weights',
  'attention',
  'unknown',
] as const;
/** Why rows differ. */
export type Cause = (typeof CAUSES)[number];

const sideSchema = z.strictObject({
  backend: name,
  /** Of the engine. */
  version: name,
  model: name,
  /** SHA-256 of the GGUF file, or of a checkpoint as `sha256sum` lists its weights. */
  modelDigest: hex,
  weights: name,
  fingerprint: hex,
  cacheLayout: name,
  wireType: z.enum(['f16', 'bf16']),
  chunkTokens: count,
});

const figuresSchema = z.strictObject({
  cosine: z.number().min(-1.001).max(1.001),
  distance: measure,
  maxDifference: measure,
  peak: measure,
});
const rowLimitsSchema = figuresSchema.pick({ cosine: true, distance: true, peak: true });

const layerSchema = z.strictObject({
  layer: count,
  kind: z.enum(['global', 'window']),
  k: figuresSchema,
  v: figuresSchema,
  limits: z.strictObject({ k: rowLimitsSchema, v: rowLimitsSchema }),
});

const promptSchema = z.strictObject({
  kind: z.enum(['short', 'beyond-window', 'long']),
  tokens: count,
  /** What the decoder made of the producer's rows against its own; null when it cannot install them. */
  answer: z
    .strictObject({
      /** Greatest difference of two logits of the first token. */
      logitDifference: measure,
      sameFirstToken: z.boolean(),
      /** Greedy tokens that are the same at the same place. */
      equalTokens: count,
      comparedTokens: count,
    })
    .nullable(),
  /** Tokens/s; null when rows came from a cache. */
  producerSpeed: measure.nullable(),
  referenceSpeed: measure.nullable(),
});

const causeSchema = z.strictObject({
  layer: count,
  /** Which of K and V differ. */
  kinds: z.array(z.enum(['k', 'v'])).min(1),
  promptTokens: count,
  cause: z.enum(CAUSES),
  detail: text,
});

export const recordSchema = z.strictObject({
  schema: z.literal(1),
  madeAt: time,
  muser: name,
  producer: sideSchema,
  reference: sideSchema,
  prompts: z.array(promptSchema).min(1).max(64),
  layers: z.array(layerSchema).min(1).max(MAX_LAYERS),
  thresholds: z.strictObject({
    /** Weight types of the pair whose limits were used. */
    producer: name,
    reference: name,
    basis: z.enum(['measured', 'published']),
    /** False: this pair has none of its own, and the most careful ones were used. */
    exact: z.boolean(),
    logitDifference: measure,
    sameFirstTokens: share,
    equalTokens: share,
  }),
  verdict: z.enum(['passed', 'failed']),
  /** What was beyond its limit, for people. */
  failures: z.array(text).max(MAX_LAYERS + 16),
  /** Of the first layer whose rows differ; null when none does. */
  cause: causeSchema.nullable(),
});
export type QualificationRecord = z.infer<typeof recordSchema>;
export type PromptRecord = z.infer<typeof promptSchema>;
export type LayerRecord = z.infer<typeof layerSchema>;
export type SideRecord = z.infer<typeof sideSchema>;
export type CauseRecord = z.infer<typeof causeSchema>;

const signedSchema = z.strictObject({
  record: z.record(z.string(), z.unknown()),
  signature: z.strictObject({
    /** node: the identity that a coordinator has enrolled. local: a key of this state folder alone. */
    signer: z.enum(['node', 'local']),
    nodeId: name,
    publicKey: z.base64(),
    value: z.base64(),
  }),
});

export interface RecordSigner {
  readonly kind: 'node' | 'local';
  readonly key: SigningKey;
}

/** What a verified file says, and who signed it. */
export interface VerifiedRecord {
  readonly record: QualificationRecord;
  readonly signer: 'node' | 'local';
  readonly nodeId: string;
}

/** The record with its signature, as the text of a file. */
export function sealRecord(record: QualificationRecord, { kind, key }: RecordSigner): string {
  const value = key.sign(DOMAIN, ...signedParts(kind, recordSchema.parse(record)));
  const signature = {
    signer: kind,
    nodeId: nodeIdOf(key.publicKey),
    publicKey: Buffer.from(key.publicKey).toString('base64'),
    value: Buffer.from(value).toString('base64'),
  };
  return `${JSON.stringify({ record, signature }, null, 2)}\n`;
}

/**
 * The content of a record, once its signature holds. That proves who wrote it, by the key that the file names; whose key
 * that is, the reader has to know.
 * @throws MuserError MESSAGE_INVALID when it is no such file or has a name twice, SIGNATURE_INVALID when anything in it
 *   was changed
 */
export function openRecord(content: string): VerifiedRecord {
  const file = parsed(content);
  const { publicKey, value, signer, nodeId } = file.signature;
  const key = verifyingKey(Buffer.from(publicKey, 'base64'));
  key.verify(DOMAIN, partsToVerify(file), Buffer.from(value, 'base64'));
  if (nodeIdOf(key.publicKey) !== nodeId) {
    throw new MuserError('SIGNATURE_INVALID', 'the node id of the record is not that of its key');
  }
  const record = recordSchema.safeParse(file.record);
  if (!record.success) throw notARecord(record.error);
  return { record: record.data, signer, nodeId };
}

/** A record may replace an earlier one, also one whose signature no longer holds, and nothing else. */
export const RECORD_FILE: ResultKind = {
  what: 'the record of a qualification',
  maxBytes: MAX_RECORD_BYTES,
  isEarlier: (content) => {
    try {
      return recordSchema.safeParse(parsed(content).record).success;
    } catch {
      return false;
    }
  },
};

function parsed(content: string): z.infer<typeof signedSchema> {
  if (content.length > MAX_RECORD_BYTES) {
    throw new MuserError('MESSAGE_TOO_LARGE', `a record has at most ${MAX_RECORD_BYTES} bytes`);
  }
  let value: unknown;
  try {
    value = JSON.parse(content);
    if (membersWritten(content) !== membersOf(value)) throw new SyntaxError('a name is there twice');
  } catch (cause) {
    throw notARecord(cause);
  }
  const file = signedSchema.safeParse(value);
  if (!file.success) throw notARecord(file.error);
  return file.data;
}

/** Members of all objects in a text that is JSON: colons outside strings. Of a name that is there twice, both count. */
function membersWritten(content: string): number {
  return content.replace(/"(?:[^"\\]|\\.)*"/g, '').split(':').length - 1;
}

/** The same of the parsed value, which has the last of the two alone. */
function membersOf(value: unknown): number {
  if (value === null || typeof value !== 'object') return 0;
  const own = Array.isArray(value) ? 0 : Object.keys(value).length;
  return Object.values(value).reduce((sum: number, inner) => sum + membersOf(inner), own);
}

function notARecord(cause: unknown): MuserError {
  return new MuserError('MESSAGE_INVALID', 'this is not the record of a qualification', { cause });
}

/** @throws MuserError MESSAGE_INVALID for what has no canonical form: numbers beyond all measure, nesting without end */
function partsToVerify({ record, signature }: z.infer<typeof signedSchema>): [Uint8Array, Uint8Array] {
  try {
    return signedParts(signature.signer, record);
  } catch (cause) {
    throw notARecord(cause);
  }
}

/** The kind of signer too: nobody may turn the record of a local key into a node's. */
function signedParts(signer: 'node' | 'local', record: Record<string, unknown>): [Uint8Array, Uint8Array] {
  return [Buffer.from(signer, 'utf8'), Buffer.from(canonicalJson(record as Json), 'utf8')];
}
