/** A value of a GGUF file's metadata. Numbers are u32 unless they say otherwise, those of arrays i32. */
export type GgufValue = string | number | { f32: number } | readonly string[] | readonly number[] | readonly boolean[];

/** A tensor of 32-bit floats; the innermost dimension is the last one. */
export interface Tensor {
  readonly shape: readonly number[];
  readonly values: Float32Array;
}

const ALIGNMENT = 32;
const TYPES = { u32: 4, i32: 5, f32: 6, bool: 7, text: 8, array: 9 } as const;

/** A GGUF file, version 3, with tensors of type F32. */
export function ggufFile(metadata: Record<string, GgufValue>, tensors: ReadonlyMap<string, Tensor>): Buffer {
  const parts = [Buffer.from('GGUF'), u32(3), u64(tensors.size), u64(Object.keys(metadata).length)];
  for (const [key, value] of Object.entries(metadata)) parts.push(text(key), ...valueOf(value));
  let offset = 0;
  for (const [name, { shape, values }] of tensors) {
    parts.push(text(name), u32(shape.length), ...shape.toReversed().map(u64), u32(0), u64(offset));
    offset += padded(values.byteLength);
  }
  const header = Buffer.concat(parts);
  const file = Buffer.alloc(padded(header.length) + offset);
  header.copy(file);
  let at = padded(header.length);
  for (const { values } of tensors.values()) {
    Buffer.from(values.buffer, values.byteOffset, values.byteLength).copy(file, at);
    at += padded(values.byteLength);
  }
  return file;
}

function valueOf(value: GgufValue): Buffer[] {
  if (typeof value === 'string') return [u32(TYPES.text), text(value)];
  if (typeof value === 'number') return [u32(TYPES.u32), u32(value)];
  if ('f32' in value) return [u32(TYPES.f32), f32(value.f32)];
  const [first] = value;
  const type = typeof first === 'string' ? TYPES.text : typeof first === 'boolean' ? TYPES.bool : TYPES.i32;
  return [u32(TYPES.array), u32(type), u64(value.length), ...value.map(elementOf)];
}

function elementOf(element: string | number | boolean): Buffer {
  if (typeof element === 'string') return text(element);
  return typeof element === 'boolean' ? Buffer.from([element ? 1 : 0]) : u32(element);
}

function padded(bytes: number): number {
  return Math.ceil(bytes / ALIGNMENT) * ALIGNMENT;
}

function text(content: string): Buffer {
  const bytes = Buffer.from(content);
  return Buffer.concat([u64(bytes.length), bytes]);
}

function u32(number: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(number);
  return bytes;
}

function f32(number: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeFloatLE(number);
  return bytes;
}

function u64(number: number): Buffer {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64LE(BigInt(number));
  return bytes;
}
