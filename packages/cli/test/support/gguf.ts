/** Element types of GGUF metadata. */
export const TYPES = { u32: 4, i32: 5, f32: 6, bool: 7, text: 8, array: 9, u64: 10 } as const;

export type Entry =
  | { type: 'u32' | 'i32' | 'f32'; value: number }
  | { type: 'u64'; value: bigint }
  | { type: 'bool'; value: boolean }
  | { type: 'text'; value: string }
  | { type: 'bools'; value: readonly boolean[] }
  | { type: 'u32s'; value: readonly number[] }
  | { type: 'texts'; value: readonly string[] };

export interface Tensor {
  name: string;
  shape: readonly number[];
}

/** A type that nobody knows, so that nobody can say how many bytes a tensor needs. */
const UNKNOWN_TENSOR_TYPE = 200;

/** A GGUF file with this metadata, whose tensors have a few bytes of nothing. */
export function ggufFile(entries: Record<string, Entry>, tensors: readonly Tensor[] = []): Buffer {
  const parts = [Buffer.from('GGUF'), u32(3), u64(tensors.length), u64(Object.keys(entries).length)];
  for (const [key, entry] of Object.entries(entries)) parts.push(text(key), value(entry));
  for (const { name, shape } of tensors) {
    parts.push(text(name), u32(shape.length), ...shape.map((size) => u64(size)), u32(UNKNOWN_TENSOR_TYPE), u64(0));
  }
  return Buffer.concat([...parts, Buffer.alloc(64)]);
}

function value(entry: Entry): Buffer {
  switch (entry.type) {
    case 'u32':
      return Buffer.concat([u32(TYPES.u32), u32(entry.value)]);
    case 'i32':
      return Buffer.concat([u32(TYPES.i32), i32(entry.value)]);
    case 'f32':
      return Buffer.concat([u32(TYPES.f32), f32(entry.value)]);
    case 'u64':
      return Buffer.concat([u32(TYPES.u64), u64(entry.value)]);
    case 'bool':
      return Buffer.concat([u32(TYPES.bool), Buffer.from([entry.value ? 1 : 0])]);
    case 'text':
      return Buffer.concat([u32(TYPES.text), text(entry.value)]);
    case 'bools':
      return array(
        TYPES.bool,
        entry.value.map((flag) => Buffer.from([flag ? 1 : 0])),
      );
    case 'u32s':
      return array(TYPES.u32, entry.value.map(u32));
    case 'texts':
      return array(TYPES.text, entry.value.map(text));
  }
}

function array(type: number, elements: readonly Buffer[]): Buffer {
  return Buffer.concat([u32(TYPES.array), u32(type), u64(elements.length), ...elements]);
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

function i32(number: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeInt32LE(number);
  return bytes;
}

function f32(number: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeFloatLE(number);
  return bytes;
}

function u64(number: number | bigint): Buffer {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64LE(BigInt(number));
  return bytes;
}
