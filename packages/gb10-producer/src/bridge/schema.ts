/**
 * The contract of the two languages, python/muser_vllm/bridge_schema.json: which frames exist, their fields, their caps.
 * This file reads it, checks values against it, and gives its frames types; bridge.json in proto/vectors pins the bytes.
 */
import { readFileSync } from 'node:fs';

import { MuserError } from '@muser/protocol';

export type Link = 'control' | 'data';
export type Side = 'worker' | 'node';

/** Why a frame is refused; the schema's list. */
export type FrameErrorCode =
  | 'FRAME_TOO_LARGE'
  | 'FRAME_TRUNCATED'
  | 'VERSION_UNKNOWN'
  | 'KIND_UNKNOWN'
  | 'HEADER_TOO_LARGE'
  | 'HEADER_INVALID'
  | 'FIELD_INVALID'
  | 'PAYLOAD_INVALID'
  | 'KIND_UNEXPECTED';

/** What came is no frame of this bridge; its connection must be closed. The message names fields, never values. */
export class FrameError extends MuserError {
  readonly reason: FrameErrorCode;

  constructor(reason: FrameErrorCode, message: string) {
    super(reason === 'FRAME_TOO_LARGE' ? 'MESSAGE_TOO_LARGE' : 'MESSAGE_INVALID', `${message} (${reason})`);
    this.reason = reason;
  }
}

export type FailureCode =
  'CANCELLED' | 'OUT_OF_MEMORY' | 'INVALID_REQUEST' | 'ENGINE_FAILED' | 'STAGING_FULL' | 'PREEMPTED';
export type ReadFailure =
  Exclude<FailureCode, 'OUT_OF_MEMORY' | 'INVALID_REQUEST'> | 'UNKNOWN' | 'RANGE' | 'LEASE_EXPIRED';
export type EndReason = Exclude<ReadFailure, 'UNKNOWN' | 'RANGE'> | 'DONE';
export type RefusalCode =
  'SETTINGS_INVALID' | 'MODEL_UNSUPPORTED' | 'LAYOUT_UNKNOWN' | 'SELF_TEST_FAILED' | 'OUT_OF_MEMORY' | 'ENGINE_FAILED';
export type MilestoneName = 'environment' | 'weights' | 'kv_cache' | 'warm_up' | 'ready';

/** [first, end) */
export type Range = readonly [number, number];

export interface ReadyHeader {
  readonly vllmVersion: string;
  readonly backendName: string;
  readonly layout: string;
  readonly blockSizes: readonly number[];
  readonly geometry: {
    readonly layers: ('global' | 'window')[];
    readonly kvHeads: number;
    readonly headDimension: number;
    readonly windowTokens: number;
    readonly ropeBase: number;
    readonly ropeLayers: 'all' | 'window';
    readonly vocabularySize: number;
  };
  /** Hexadecimal. */
  readonly tokenizerSha256: string;
  readonly maxPromptTokens: number;
  readonly chunkTokens: number;
  readonly wireTypes: readonly 'bf16'[];
  readonly kvBlocksBytes: number;
  readonly ranks: number;
  readonly warnings: readonly string[];
}

interface HelloBase {
  readonly secret: string;
  readonly pid: number;
}
export type ControlHello = HelloBase & { readonly role: 'control'; readonly version: string };
export type DataHello = HelloBase & {
  readonly role: 'data';
  readonly rank: number;
  readonly layers: Range;
  readonly heads: Range;
};

export type FinishedHeader =
  | {
      readonly id: string;
      readonly ok: true;
      readonly promptTokens: number;
      readonly reusedTokens: number;
      readonly preemptions: number;
    }
  | { readonly id: string; readonly ok: false; readonly code: FailureCode; readonly message: string };

export interface ChunkHeader {
  readonly id: string;
  readonly index: number;
  readonly start: number;
  readonly end: number;
  readonly windowStart: number;
}

/** Headers of the frames that the worker sends, by kind. */
export interface WorkerFrames {
  readonly hello: ControlHello | DataHello;
  readonly milestone: { readonly name: MilestoneName; readonly ms: number };
  readonly ready: ReadyHeader;
  readonly heartbeat: { readonly steps: number; readonly runningRequests: number; readonly freeMemoryBytes: number };
  readonly finished: FinishedHeader;
  readonly refused: { readonly code: RefusalCode; readonly message: string };
  readonly chunk: ChunkHeader;
  readonly rows: { readonly read: number };
  readonly failed: { readonly read: number; readonly code: ReadFailure };
  readonly ended: { readonly id: string; readonly reason: EndReason };
}

/** Headers of the frames that we send, by kind. */
export interface NodeFrames {
  readonly prefill: { readonly id: string; readonly heldTokens: number; readonly cacheScope: string };
  readonly abort: { readonly id: string };
  readonly shutdown: Record<string, never>;
  readonly read: {
    readonly read: number;
    readonly id: string;
    readonly index: number;
    readonly tokenStart: number;
    readonly tokenCount: number;
    readonly parts: readonly (readonly [layer: number, kind: 0 | 1])[];
  };
  readonly release: { readonly id: string; readonly index: number };
  readonly done: { readonly id: string };
}

/** Bulk bytes as they came from the socket: in pieces, because joining them would copy them. */
export interface Payload {
  readonly length: number;
  readonly pieces: readonly Uint8Array[];
}

type AllFrames = WorkerFrames & NodeFrames;
export type FrameKind = keyof AllFrames;
type FrameOf<K extends keyof Frames, Frames> = {
  [Kind in K]: { readonly kind: Kind; readonly header: Frames[Kind]; readonly payload: Payload };
}[K];
export type Frame = FrameOf<FrameKind, AllFrames>;
export type WorkerFrame = FrameOf<keyof WorkerFrames, WorkerFrames>;

export interface FieldSpec {
  readonly type: string;
  readonly min?: number;
  readonly max?: number;
  readonly maxBytes?: number;
  readonly maxItems?: number;
  readonly nullable?: boolean;
  readonly values?: readonly string[];
  readonly fields?: FieldSpecs;
  /** The field is there if and only if those have these values. */
  readonly when?: Readonly<Record<string, unknown>>;
}
export type FieldSpecs = Readonly<Record<string, FieldSpec>>;

export interface KindSpec {
  readonly index: number;
  readonly name: FrameKind;
  readonly links: readonly Link[];
  readonly from: Side;
  readonly payload: 'none' | 'tokens' | 'rows';
  readonly fields: FieldSpecs;
}

interface SchemaFile {
  readonly version: number;
  readonly limits: {
    readonly frameBytes: number;
    readonly headerBytes: number;
    readonly payloadBytes: number;
    readonly helloTimeoutMs: number;
    readonly pendingReads: number;
    readonly pendingPrefills: number;
  };
  readonly errors: readonly FrameErrorCode[];
  readonly kinds: readonly KindSpec[];
  readonly settings: { readonly fields: FieldSpecs };
}

const file = JSON.parse(
  readFileSync(new URL('../../python/muser_vllm/bridge_schema.json', import.meta.url), 'utf8'),
) as SchemaFile;

export const BRIDGE_VERSION = file.version;
export const BRIDGE_LIMITS = file.limits;
export const BRIDGE_ERRORS = file.errors;
export const SETTINGS_FIELDS = file.settings.fields;
const byName = new Map<string, KindSpec>(file.kinds.map((kind) => [kind.name, kind]));
const byIndex = new Map<number, KindSpec>(file.kinds.map((kind) => [kind.index, kind]));

export function kindNamed(name: FrameKind): KindSpec {
  const kind = byName.get(name);
  if (kind === undefined) throw new MuserError('INTERNAL', `the bridge's schema has no frame ${name}`);
  return kind;
}

export function kindAt(index: number): KindSpec {
  const kind = byIndex.get(index);
  if (kind === undefined) throw new FrameError('KIND_UNKNOWN', `frame of kind ${index}`);
  return kind;
}

/** @throws FrameError FIELD_INVALID for a field that is missing, too many, or of another type or range */
export function checkFields(specs: FieldSpecs, value: Readonly<Record<string, unknown>>, where: string): void {
  const expected = Object.entries(specs).filter(([, { when = {} }]) =>
    Object.entries(when).every(([name, wanted]) => Object.hasOwn(value, name) && value[name] === wanted),
  );
  const names = new Set(expected.map(([name]) => name));
  if (Object.keys(value).some((name) => !names.has(name))) {
    throw new FrameError('FIELD_INVALID', `${where}: a field that does not belong there`);
  }
  for (const [name, spec] of expected) {
    if (!Object.hasOwn(value, name)) throw new FrameError('FIELD_INVALID', `${where}: field ${name} is missing`);
    if (!fits(spec, value[name], `${where}.${name}`)) {
      throw new FrameError('FIELD_INVALID', `${where}: field ${name} is not a valid ${spec.type}`);
    }
  }
}

function fits(spec: FieldSpec, value: unknown, where: string): boolean {
  if (value === null) return spec.nullable === true;
  if (spec.type === 'object') {
    if (!isObject(value)) return false;
    checkFields(spec.fields ?? {}, value, where);
    return true;
  }
  const item = ITEMS[spec.type];
  if (item !== undefined) {
    return Array.isArray(value) && value.length <= (spec.maxItems ?? 0) && value.every((one) => item(spec, one));
  }
  return SCALARS[spec.type]?.(spec, value) ?? false;
}

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

type Check = (spec: FieldSpec, value: unknown) => boolean;

const isInteger: Check = ({ min = 0, max = Number.MAX_SAFE_INTEGER }, value) =>
  Number.isSafeInteger(value) && (value as number) >= min && (value as number) <= max;

const isText: Check = ({ maxBytes = 0 }, value) =>
  typeof value === 'string' && !/\p{Surrogate}/u.test(value) && Buffer.byteLength(value) <= maxBytes;

const isPair = (value: unknown): value is [unknown, unknown] => Array.isArray(value) && value.length === 2;

const isRange: Check = (spec, value) =>
  isPair(value) && value.every((one) => isInteger(spec, one)) && (value[0] as number) <= (value[1] as number);

const isOneOf: Check = ({ values = [] }, value) => typeof value === 'string' && values.includes(value);

const SCALARS: Readonly<Record<string, Check>> = {
  integer: isInteger,
  number: (_, value) => typeof value === 'number' && Math.abs(value) <= Number.MAX_SAFE_INTEGER,
  string: isText,
  boolean: (_, value) => typeof value === 'boolean',
  enum: isOneOf,
  id: (_, value) => typeof value === 'string' && /^[A-Za-z0-9_-]{1,64}$/.test(value),
  range: isRange,
};

const ITEMS: Readonly<Record<string, Check>> = {
  integers: isInteger,
  strings: isText,
  enums: isOneOf,
  parts: (_, value) =>
    isPair(value) &&
    isInteger({ type: 'integer', max: 255 }, value[0]) &&
    isInteger({ type: 'integer', max: 1 }, value[1]),
};
