import type { Tensor } from './gguf-file.js';

/** A safetensors file with tensors of type BF16. Values must be such already: they are cut, not rounded. */
export function safetensorsFile(tensors: ReadonlyMap<string, Tensor>): Buffer {
  const header: Record<string, unknown> = { __metadata__: { format: 'pt' } };
  let offset = 0;
  for (const [name, { shape, values }] of tensors) {
    header[name] = { dtype: 'BF16', shape, data_offsets: [offset, offset + values.length * 2] };
    offset += values.length * 2;
  }
  const json = Buffer.from(JSON.stringify(header));
  const file = Buffer.alloc(8 + json.length + offset);
  file.writeBigUInt64LE(BigInt(json.length));
  json.copy(file, 8);
  let at = 8 + json.length;
  for (const { values } of tensors.values()) {
    const words = new Uint32Array(values.buffer, values.byteOffset, values.length);
    for (const word of words) at = file.writeUInt16LE(word >>> 16, at);
  }
  return file;
}

/** The bf16 value that is nearest, ties to even. */
export function toBf16(value: number): number {
  const words = new Uint32Array(Float32Array.of(value).buffer);
  const bits = words[0] ?? 0;
  words[0] = ((bits + 0x7fff + ((bits >>> 16) & 1)) & 0xffff0000) >>> 0;
  return new Float32Array(words.buffer)[0] ?? NaN;
}
