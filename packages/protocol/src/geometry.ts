import { createHash } from 'node:crypto';
import { MuserError } from './errors.js';
import {
  DIGEST_BYTES,
  MAX_HEAD_DIMENSION,
  MAX_KV_HEADS,
  MAX_LAYERS,
  MAX_PROMPT_TOKENS,
  MAX_VOCABULARY_SIZE,
} from './limits.js';
import { invalid, lengthPrefixed } from './wire/bytes.js';
import { double, enumeration, names, oneName, uint32 } from './wire/fields.js';
import { message, type Infer } from './wire/schema.js';

/** global: attends to every earlier token. window: attends to the last `windowTokens` only. */
export type LayerKind = 'global' | 'window';
/** Element type of keys and values on the wire, little-endian, 2 bytes each. */
export type WireType = 'f16' | 'bf16';
export type KvKind = 'k' | 'v';
export type RopeLayers = 'all' | 'window';

export const ELEMENT_BYTES = 2;

export const layerKinds = enumeration<LayerKind>('LayerKind', { global: 1, window: 2 });
export const wireTypes = enumeration<WireType>('WireType', { f16: 1, bf16: 2 });
export const kvKinds = enumeration<KvKind>('KvKind', { k: 1, v: 2 });
export const ropeLayerNames = enumeration<RopeLayers>('RopeLayers', { all: 1, window: 2 });

export const geometrySchema = message(
  'Geometry',
  1024,
  {
    /** Kind of every layer, first layer first. */
    layers: names(1, layerKinds, { min: 1, max: MAX_LAYERS }),
    kvHeads: uint32(2, { min: 1, max: MAX_KV_HEADS }),
    /** Elements per head; even, because K is in half-split order. */
    headDimension: uint32(3, { min: 2, max: MAX_HEAD_DIMENSION }),
    /** Tokens that a window layer sees; 0 when there is no window layer. */
    windowTokens: uint32(4, { max: MAX_PROMPT_TOKENS }),
    ropeBase: double(5),
    /** Which layers rotate Q and K by position. */
    ropeLayers: oneName(6, ropeLayerNames),
    vocabularySize: uint32(7, { min: 1, max: MAX_VOCABULARY_SIZE }),
  },
  (value, path) => {
    if (value.headDimension % 2 !== 0) throw invalid(path, `head dimension ${value.headDimension} is odd`);
    if (value.layers.includes('window') !== value.windowTokens > 0) {
      throw invalid(path, `windowTokens is ${value.windowTokens}, which does not fit the kinds of the layers`);
    }
  },
);
/** Shape of a model's KV cache, and what must agree for keys to mean the same on both sides. */
export type Geometry = Infer<typeof geometrySchema>;

/** Bytes of one token's K (or V) of one layer on the wire: kvHeads x headDimension elements. */
export function rowBytesOf(geometry: Geometry): number {
  return geometry.kvHeads * geometry.headDimension * ELEMENT_BYTES;
}

/**
 * Payload bytes of a chunk on the wire: K and V of `tokens` rows of every global layer and of `windowRows` rows of every
 * window layer, which are as many as the window reaches unless told otherwise.
 */
export function chunkBytesOf(
  geometry: Geometry,
  tokens: number,
  windowRows = Math.min(tokens, geometry.windowTokens),
): number {
  const rows = geometry.layers.reduce((sum, kind) => sum + (kind === 'global' ? tokens : windowRows), 0);
  return 2 * rowBytesOf(geometry) * rows;
}

export function sameGeometry(a: Geometry, b: Geometry): boolean {
  return geometrySchema.encode(a).equals(geometrySchema.encode(b));
}

const FINGERPRINT_DOMAIN = 'muser/1/fingerprint';

/**
 * What two models must share so that one can go on from the other's KV cache: geometry, RoPE, tokenizer. Weights may be
 * quantized differently, so they are not in it. SHA-256 over a fixed form (docs/PROTOCOL.md), 32 bytes.
 * `tokenizerSha256` is SHA-256 over u32 LE length and bytes of every token in id order.
 */
export function fingerprintOf(of: { geometry: Geometry; tokenizerSha256: Uint8Array }): Uint8Array {
  const { geometry, tokenizerSha256 } = of;
  geometrySchema.size(geometry, 'Geometry');
  if (tokenizerSha256.length !== DIGEST_BYTES) {
    throw new MuserError(
      'MESSAGE_INVALID',
      `tokenizer digest has ${tokenizerSha256.length} bytes, needs ${DIGEST_BYTES}`,
    );
  }
  const numbers = Buffer.alloc(4 * 4 + 8 + 1);
  let at = numbers.writeUInt32LE(geometry.kvHeads, 0);
  at = numbers.writeUInt32LE(geometry.headDimension, at);
  at = numbers.writeUInt32LE(geometry.windowTokens, at);
  at = numbers.writeUInt32LE(geometry.vocabularySize, at);
  at = numbers.writeDoubleLE(geometry.ropeBase, at);
  numbers.writeUInt8(ropeLayerNames.numbers[geometry.ropeLayers], at);
  const layers = Uint8Array.from(geometry.layers, (kind) => layerKinds.numbers[kind]);
  return createHash('sha256')
    .update(lengthPrefixed([Buffer.from(FINGERPRINT_DOMAIN), layers, numbers, tokenizerSha256]))
    .digest();
}
