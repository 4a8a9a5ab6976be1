import { damaged, HeaderReader } from './header-reader.js';
import { leastTensorBytes } from './tensor-size.js';

/** A header of 200,000 tokens with merges has about 10 MB. */
const MAX_HEADER_BYTES = 256 * 1024 * 1024;
const MAX_KEYS = 4_096;
const MAX_TENSORS = 65_536;
const MAX_KEY_BYTES = 1_024;
const MAX_NAME_BYTES = 256;
const MAX_TOKENS = 2 ** 24;
const MAX_TOKEN_BYTES = 64 * 1024;
/** Values above these are passed over: nothing that is asked for is longer. */
const KEPT_TEXT_BYTES = 1_024;
const KEPT_ELEMENTS = 1_024;
const MAX_KEPT_ELEMENTS = 65_536;
const DEFAULT_ALIGNMENT = 32;
const TOKENS_KEY = 'tokenizer.ggml.tokens';

export type Scalar = number | boolean | string;
export type Value = Scalar | readonly Scalar[];

/** What a GGUF file says about itself; no tensor is read. */
export interface GgufHeader {
  /** Scalars, and arrays of up to 1,024 numbers. Longer texts and arrays are left out. */
  values: ReadonlyMap<string, Value>;
  /** Every key, also of values that were left out. */
  keys: ReadonlySet<string>;
  /** Shape of each tensor, innermost dimension first. */
  tensors: ReadonlyMap<string, readonly number[]>;
  /** null: there is no vocabulary. */
  tokenCount: number | null;
  fileBytes: number;
}

const SIZES = new Map([
  [0, 1],
  [1, 1],
  [2, 2],
  [3, 2],
  [4, 4],
  [5, 4],
  [6, 4],
  [7, 1],
  [10, 8],
  [11, 8],
  [12, 8],
]);
const TEXT = 8;
const ARRAY = 9;

/**
 * Reads the header of a GGUF file, version 2 or 3. Counts and lengths are checked before anything is done with them.
 *
 * @param onToken is called with every token of the vocabulary in id order; the bytes are valid during the call only
 * @throws CliError MODEL_LOAD_FAILED when it is no GGUF file, or a damaged one
 */
export function readGgufHeader(path: string, onToken?: (id: number, bytes: Buffer) => void): GgufHeader {
  const reader = new HeaderReader(path, MAX_HEADER_BYTES);
  try {
    return new GgufParser(path, reader, onToken ?? (() => undefined)).parse();
  } finally {
    reader.close();
  }
}

class GgufParser {
  readonly #values = new Map<string, Value>();
  readonly #keys = new Set<string>();
  #tokenCount: number | null = null;
  #keptElements = 0;

  constructor(
    private readonly path: string,
    private readonly reader: HeaderReader,
    private readonly onToken: (id: number, bytes: Buffer) => void,
  ) {}

  parse(): GgufHeader {
    const { reader, path } = this;
    if (reader.size < 4 || reader.bytes(4, 'the magic').toString('latin1') !== 'GGUF') {
      throw damaged(`${path} is no GGUF file: it does not start with GGUF`);
    }
    const version = reader.uint32('the version');
    if (version !== 2 && version !== 3) {
      const bigEndian = version === 0x02000000 || version === 0x03000000;
      throw damaged(`${path}: ${bigEndian ? 'big-endian GGUF' : `GGUF version ${version}`}, only 2 and 3 are known`);
    }
    const tensorCount = reader.uint64('the number of tensors', MAX_TENSORS);
    const keyCount = reader.uint64('the number of keys', MAX_KEYS);
    for (let i = 0; i < keyCount; i += 1) this.#readPair();
    const tensors = this.#readTensors(tensorCount);
    return { values: this.#values, keys: this.#keys, tensors, tokenCount: this.#tokenCount, fileBytes: reader.size };
  }

  #readPair(): void {
    const { reader } = this;
    const key = reader.bytes(reader.uint64('a key', MAX_KEY_BYTES), 'a key').toString('utf8');
    if (this.#keys.has(key)) throw damaged(`${this.path}: the key ${key} is there twice`);
    this.#keys.add(key);
    const type = reader.uint32(`the type of ${key}`);
    if (type === ARRAY) this.#readArray(key);
    else if (type === TEXT) this.#readText(key);
    else this.#values.set(key, this.#number(type, key));
  }

  #readText(key: string): void {
    const length = this.reader.uint64(key, MAX_HEADER_BYTES);
    if (length <= KEPT_TEXT_BYTES) this.#values.set(key, this.reader.bytes(length, key).toString('utf8'));
    else this.reader.skip(length, key);
  }

  #readArray(key: string): void {
    const { reader } = this;
    const type = reader.uint32(`the element type of ${key}`);
    const count = reader.uint64(`the length of ${key}`, MAX_HEADER_BYTES);
    if (type === TEXT) {
      this.#readTexts(key, count);
      return;
    }
    const size = this.#sizeOf(type, key);
    if (count > KEPT_ELEMENTS || this.#keptElements + count > MAX_KEPT_ELEMENTS) {
      reader.skip(count * size, key);
      return;
    }
    this.#keptElements += count;
    const elements: Scalar[] = [];
    for (let i = 0; i < count; i += 1) elements.push(this.#number(type, key));
    this.#values.set(key, elements);
  }

  #readTexts(key: string, count: number): void {
    const { reader } = this;
    if (key !== TOKENS_KEY) {
      for (let i = 0; i < count; i += 1) reader.skip(reader.uint64(key, MAX_HEADER_BYTES), key);
      return;
    }
    if (count > MAX_TOKENS) throw damaged(`${this.path}: ${key} has ${count} entries, allowed are ${MAX_TOKENS}`);
    for (let id = 0; id < count; id += 1) {
      const bytes = reader.bytes(reader.uint64(key, MAX_TOKEN_BYTES), key);
      this.onToken(id, bytes);
    }
    this.#tokenCount = count;
  }

  #readTensors(count: number): Map<string, readonly number[]> {
    const { reader, path } = this;
    const tensors = new Map<string, readonly number[]>();
    let dataBytes = 0;
    for (let i = 0; i < count; i += 1) {
      const name = reader.bytes(reader.uint64('a tensor name', MAX_NAME_BYTES), 'a tensor name').toString('utf8');
      const dimensions = reader.uint32(`the dimensions of ${name}`);
      if (dimensions > 4) throw damaged(`${path}: the tensor ${name} has ${dimensions} dimensions`);
      const shape: number[] = [];
      for (let d = 0; d < dimensions; d += 1) shape.push(reader.uint64(name, Number.MAX_SAFE_INTEGER));
      const type = reader.uint32(`the type of ${name}`);
      const offset = reader.uint64(`the offset of ${name}`, Number.MAX_SAFE_INTEGER);
      dataBytes = Math.max(dataBytes, offset + leastTensorBytes(type, shape));
      if (tensors.has(name)) throw damaged(`${path}: the tensor ${name} is there twice`);
      tensors.set(name, shape);
    }
    const start = this.#aligned(reader.position);
    if (count > 0 && dataBytes > reader.size - start) {
      throw damaged(`${path} is truncated: it has ${reader.size} bytes, its tensors end at ${start + dataBytes}`);
    }
    return tensors;
  }

  /** Where the tensors begin, after a header of this many bytes. */
  #aligned(headerBytes: number): number {
    const value = this.#values.get('general.alignment');
    const alignment = typeof value === 'number' && value > 0 ? value : DEFAULT_ALIGNMENT;
    return Math.ceil(headerBytes / alignment) * alignment;
  }

  #number(type: number, key: string): number | boolean {
    const bytes = this.reader.bytes(this.#sizeOf(type, key), key);
    switch (type) {
      case 0:
        return bytes.readUInt8();
      case 1:
        return bytes.readInt8();
      case 2:
        return bytes.readUInt16LE();
      case 3:
        return bytes.readInt16LE();
      case 4:
        return bytes.readUInt32LE();
      case 5:
        return bytes.readInt32LE();
      case 6:
        return bytes.readFloatLE();
      case 7:
        return bytes.readUInt8() !== 0;
      case 10:
        return Number(bytes.readBigUInt64LE());
      case 11:
        return Number(bytes.readBigInt64LE());
      default:
        return bytes.readDoubleLE();
    }
  }

  #sizeOf(type: number, key: string): number {
    const size = SIZES.get(type);
    if (size === undefined) throw damaged(`${this.path}: ${key} has the type ${type}, which is unknown`);
    return size;
  }
}
