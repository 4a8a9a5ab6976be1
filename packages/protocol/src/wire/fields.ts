import { isUtf8 } from 'node:buffer';
import {
  invalid,
  tooLarge,
  varintSize,
  WIRE_FIXED64,
  WIRE_LENGTH,
  WIRE_VARINT,
  type Reader,
  type Writer,
} from './bytes.js';
import { checkCount, delimitedSize, type Field } from './schema.js';

interface Scalar<T> {
  readonly type: string;
  readonly wireType: number;
  readonly initial: T;
  /** Throws when the value breaks the field's rules; used when encoding and when decoding. */
  check(value: T, path: string): void;
  isInitial(value: T): boolean;
  /** Encoded bytes without the tag. */
  size(value: T): number;
  write(writer: Writer, value: T): void;
  read(reader: Reader, path: string): T;
}

/** A single field of proto3 with implicit presence: its initial value is left out on the wire. */
function scalarField<T>(number: number, scalar: Scalar<T>): Field<T> {
  const tag = number * 8 + scalar.wireType;
  return {
    shape: { number, type: scalar.type, repeated: false },
    wireType: scalar.wireType,
    size(value, path) {
      scalar.check(value, path);
      return scalar.isInitial(value) ? 0 : varintSize(tag) + scalar.size(value);
    },
    write(writer, value) {
      if (scalar.isInitial(value)) return;
      writer.varint(tag);
      scalar.write(writer, value);
    },
    read(reader, earlier, path) {
      if (earlier !== undefined) throw invalid(path, 'is there twice');
      return scalar.read(reader, path);
    },
    complete(value, path) {
      const present = value === undefined ? scalar.initial : value;
      scalar.check(present, path);
      return present;
    },
  };
}

function checkInteger(value: number, range: { min?: number; max: number }, path: string): void {
  if (!Number.isSafeInteger(value) || value < 0) throw invalid(path, `${value} is not an unsigned integer`);
  if (value < (range.min ?? 0)) throw invalid(path, `${value} is below ${range.min}`);
  if (value > range.max) throw tooLarge(path, 'as its value', value, range.max);
}

function unsigned(type: 'uint32' | 'uint64', number: number, range: { min?: number; max: number }): Field<number> {
  return scalarField(number, {
    type,
    wireType: WIRE_VARINT,
    initial: 0,
    check: (value, path) => checkInteger(value, range, path),
    isInitial: (value) => value === 0,
    size: varintSize,
    write: (writer, value) => writer.varint(value),
    read: (reader, path) => reader.varint(path),
  });
}

/** An integer from `min` (0) to `max`, at most 2^32 - 1. */
export function uint32(number: number, range: { min?: number; max: number } = { max: 2 ** 32 - 1 }): Field<number> {
  return unsigned('uint32', number, range);
}

/** An integer from 0 to 2^53 - 1: what a JavaScript number holds exactly. */
export function uint64(number: number): Field<number> {
  return unsigned('uint64', number, { max: Number.MAX_SAFE_INTEGER });
}

/** A finite number that is not negative. */
export function double(number: number): Field<number> {
  return scalarField(number, {
    type: 'double',
    wireType: WIRE_FIXED64,
    initial: 0,
    check(value, path) {
      if (!Number.isFinite(value) || value < 0) {
        throw invalid(path, `${value} is not a finite number from 0 on`);
      }
    },
    isInitial: (value) => value === 0,
    size: () => 8,
    write: (writer, value) => writer.double(value),
    // Minus zero becomes zero, which is how it would be encoded again.
    read: (reader, path) => reader.double(path) + 0,
  });
}

export function bool(number: number): Field<boolean> {
  return scalarField(number, {
    type: 'bool',
    wireType: WIRE_VARINT,
    initial: false,
    check(value, path) {
      if (typeof value !== 'boolean') throw invalid(path, 'is not a boolean');
    },
    isInitial: (value) => !value,
    size: () => 1,
    write: (writer, value) => writer.varint(value ? 1 : 0),
    read(reader, path) {
      const value = reader.varint(path);
      if (value > 1) throw invalid(path, `${value} is not a boolean`);
      return value === 1;
    },
  });
}

/** Bytes from `min` (0) to `max` long; decoded as a view of the message. */
export function bytes(number: number, length: { min?: number; max: number }): Field<Uint8Array> {
  const min = length.min ?? 0;
  return scalarField<Uint8Array>(number, {
    type: 'bytes',
    wireType: WIRE_LENGTH,
    initial: Buffer.alloc(0),
    check(value, path) {
      if (!(value instanceof Uint8Array)) throw invalid(path, 'is not bytes');
      if (value.length > length.max) throw tooLarge(path, 'bytes', value.length, length.max);
      if (value.length < min) throw invalid(path, `has ${value.length} bytes, needs ${min}`);
    },
    isInitial: (value) => value.length === 0,
    size: (value) => varintSize(value.length) + value.length,
    write(writer, value) {
      writer.varint(value.length);
      writer.raw(value);
    },
    read: (reader, path) => reader.view(path, length.max),
  });
}

/** Bytes of exactly this length. */
export function fixedBytes(number: number, length: number): Field<Uint8Array> {
  return bytes(number, { min: length, max: length });
}

/** Valid UTF-8 of `minBytes` (0) to `maxBytes`. */
export function text(number: number, length: { minBytes?: number; maxBytes: number }): Field<string> {
  const minBytes = length.minBytes ?? 0;
  return scalarField(number, {
    type: 'string',
    wireType: WIRE_LENGTH,
    initial: '',
    check(value, path) {
      if (typeof value !== 'string') throw invalid(path, 'is not a string');
      const size = Buffer.byteLength(value, 'utf8');
      if (size > length.maxBytes) throw tooLarge(path, 'bytes', size, length.maxBytes);
      if (size < minBytes) throw invalid(path, `has ${size} bytes, needs ${minBytes}`);
    },
    isInitial: (value) => value === '',
    size(value) {
      const size = Buffer.byteLength(value, 'utf8');
      return varintSize(size) + size;
    },
    write(writer, value) {
      writer.varint(Buffer.byteLength(value, 'utf8'));
      writer.text(value);
    },
    read(reader, path) {
      const view = reader.view(path, length.maxBytes);
      if (!isUtf8(view)) throw invalid(path, 'is not valid UTF-8');
      return view.toString('utf8');
    },
  });
}

/** List of strings; each of 1 to `maxBytes`. */
export function texts(
  number: number,
  limits: { maxBytes: number; count: { min: number; max: number } },
): Field<string[]> {
  const tag = number * 8 + WIRE_LENGTH;
  const one = text(number, { minBytes: 1, maxBytes: limits.maxBytes });
  return {
    shape: { number, type: 'string', repeated: true },
    wireType: WIRE_LENGTH,
    size(values, path) {
      checkCount(values.length, limits.count, path);
      return values.reduce((total, value) => total + one.size(value, path), 0);
    },
    write(writer, values) {
      for (const value of values) {
        writer.varint(tag);
        writer.varint(Buffer.byteLength(value, 'utf8'));
        writer.text(value);
      }
    },
    read(reader, earlier, path) {
      const values = earlier ?? [];
      if (values.length >= limits.count.max) throw tooLarge(path, 'items', values.length + 1, limits.count.max);
      values.push(one.complete(one.read(reader, undefined, path), path));
      return values;
    },
    complete(values, path) {
      checkCount(values?.length ?? 0, limits.count, path);
      return values ?? [];
    },
  };
}

/** Unsigned 32-bit integers as packed little-endian bytes (`bytes` in the .proto file); decoded into a copy. */
export function uint32Array(number: number, count: { min: number; max: number }): Field<Uint32Array> {
  return scalarField<Uint32Array>(number, {
    type: 'bytes',
    wireType: WIRE_LENGTH,
    initial: new Uint32Array(0),
    check(value, path) {
      if (!(value instanceof Uint32Array)) throw invalid(path, 'is not a Uint32Array');
      checkCount(value.length, count, path);
    },
    isInitial: (value) => value.length === 0,
    size: (value) => varintSize(value.length * 4) + value.length * 4,
    write(writer, value) {
      writer.varint(value.length * 4);
      for (const item of value) writer.uint32LE(item);
    },
    read(reader, path) {
      const view = reader.view(path, count.max * 4);
      if (view.length % 4 !== 0) throw invalid(path, `${view.length} bytes are not a multiple of 4`);
      const values = new Uint32Array(view.length / 4);
      for (let i = 0; i < values.length; i++) values[i] = view.readUInt32LE(i * 4);
      return values;
    },
  });
}

/** Names on our side, numbers from 1 on the wire; 0 (UNSPECIFIED) and unknown numbers are refused. */
export interface Enumeration<N extends string> {
  readonly name: string;
  readonly numbers: Readonly<Record<N, number>>;
  nameOf(value: number, path: string): N;
  numberOf(name: N, path: string): number;
}

export function enumeration<N extends string>(name: string, numbers: Readonly<Record<N, number>>): Enumeration<N> {
  const names = new Map(Object.entries<number>(numbers).map(([key, value]) => [value, key as N]));
  return {
    name,
    numbers,
    nameOf(value, path) {
      const found = names.get(value);
      if (found === undefined) throw invalid(path, `${value} is no ${name}`);
      return found;
    },
    numberOf(key, path) {
      if (!Object.hasOwn(numbers, key)) throw invalid(path, `is no ${name}`);
      return numbers[key];
    },
  };
}

export function oneName<N extends string>(number: number, values: Enumeration<N>): Field<N> {
  const tag = number * 8 + WIRE_VARINT;
  return {
    shape: { number, type: values.name, repeated: false },
    wireType: WIRE_VARINT,
    size: (value, path) => varintSize(tag) + varintSize(values.numberOf(value, path)),
    write(writer, value) {
      writer.varint(tag);
      writer.varint(values.numberOf(value, values.name));
    },
    read(reader, earlier, path) {
      if (earlier !== undefined) throw invalid(path, 'is there twice');
      return values.nameOf(reader.varint(path), path);
    },
    complete(value, path) {
      if (value === undefined) throw invalid(path, 'is missing');
      return value;
    },
  };
}

/** A packed list of names. Every number in use is below 128, so one byte each. */
export function names<N extends string>(
  number: number,
  values: Enumeration<N>,
  count: { min: number; max: number },
): Field<N[]> {
  return {
    shape: { number, type: values.name, repeated: true },
    wireType: WIRE_LENGTH,
    size(list, path) {
      checkCount(list.length, count, path);
      for (const item of list) values.numberOf(item, path);
      return list.length === 0 ? 0 : delimitedSize(number, list.length);
    },
    write(writer, list) {
      if (list.length === 0) return;
      writer.varint(number * 8 + WIRE_LENGTH);
      writer.varint(list.length);
      for (const item of list) writer.varint(values.numberOf(item, values.name));
    },
    read(reader, earlier, path) {
      if (earlier !== undefined) throw invalid(path, 'is there twice');
      const view = reader.view(path, count.max);
      return Array.from(view, (value) => values.nameOf(value, path));
    },
    complete(list, path) {
      checkCount(list?.length ?? 0, count, path);
      return list ?? [];
    },
  };
}
