import { invalid, Reader, tooLarge, varintSize, WIRE_LENGTH, Writer, asBuffer } from './bytes.js';

/** How a field looks in the .proto file; a test compares the two. */
export interface FieldShape {
  readonly number: number;
  readonly type: string;
  readonly repeated: boolean;
}

/**
 * One field of a message. A field that was not sent reads as `undefined` in `complete`, which gives its default or
 * refuses. Methods, not function properties, so that a Field<T> is also a Field<unknown>.
 */
export interface Field<T> {
  readonly shape: FieldShape;
  readonly wireType: number;
  /** Encoded bytes with tag, 0 when left out; throws when the value breaks the field's rules. */
  size(value: T, path: string): number;
  write(writer: Writer, value: T): void;
  /** Reads one occurrence; `earlier` is the value of earlier ones (only a repeated field accepts a second one). */
  read(reader: Reader, earlier: T | undefined, path: string): T;
  complete(value: T | undefined, path: string): T;
}

export type ValueOf<F> = F extends Field<infer T> ? T : never;
type Fields = Readonly<Record<string, Field<unknown>>>;
type MessageOf<F extends Fields> = { -readonly [K in keyof F]: ValueOf<F[K]> };
type OneOf<F extends Fields> = { [K in keyof F & string]: { kind: K; value: ValueOf<F[K]> } }[keyof F & string];

/** A message type: what it is called, its fields, its size limit, and how it is encoded and decoded. */
export interface Schema<T> {
  readonly name: string;
  readonly maxBytes: number;
  readonly fields: Readonly<Record<string, FieldShape>>;
  /** Deterministic: fields in the order of their numbers, defaults left out. Refuses what `decode` would refuse. */
  encode(value: T): Buffer;
  /** Strict; byte fields of the result are views of `bytes`. Unknown fields are skipped. */
  decode(bytes: Uint8Array): T;
  /** For nesting: size of the content without tag and length. */
  size(value: T, path: string): number;
  write(writer: Writer, value: T): void;
  read(bytes: Buffer, path: string): T;
}

export type Infer<S> = S extends Schema<infer T> ? T : never;

interface NamedField {
  readonly name: string;
  readonly path: string;
  readonly field: Field<unknown>;
}

/** The fields sorted by number, and by number for the decoder. */
function index(name: string, fields: Fields): { ordered: NamedField[]; byNumber: Map<number, NamedField> } {
  const ordered = Object.entries(fields)
    .map(([key, field]) => ({ name: key, path: `${name}.${key}`, field }))
    .sort((a, b) => a.field.shape.number - b.field.shape.number);
  const byNumber = new Map(ordered.map((named) => [named.field.shape.number, named]));
  if (byNumber.size !== ordered.length) throw new TypeError(`${name} uses a field number twice`);
  return { ordered, byNumber };
}

/** Reads every field that is known; the result has only those that were sent. */
function readFields(bytes: Buffer, name: string, byNumber: Map<number, NamedField>): Map<string, unknown> {
  const reader = new Reader(bytes);
  const values = new Map<string, unknown>();
  while (!reader.done) {
    const tag = reader.varint(name);
    const number = Math.floor(tag / 8);
    const wireType = tag % 8;
    if (number === 0 || number > MAX_FIELD_NUMBER) throw invalid(name, `field number ${number}`);
    const known = byNumber.get(number);
    if (known === undefined) {
      reader.skip(wireType, name);
      continue;
    }
    if (wireType !== known.field.wireType) throw invalid(known.path, `wire type ${wireType}`);
    values.set(known.name, known.field.read(reader, values.get(known.name), known.path));
  }
  return values;
}

const MAX_FIELD_NUMBER = 2 ** 29 - 1;

/** The size of a tag and of a length-delimited content of `size` bytes. */
export function delimitedSize(number: number, size: number): number {
  return varintSize(number * 8) + varintSize(size) + size;
}

function withTopLevel<T>(
  parts: Pick<Schema<T>, 'name' | 'maxBytes' | 'fields' | 'size' | 'write' | 'read'>,
): Schema<T> {
  return {
    ...parts,
    encode(value) {
      const writer = new Writer(parts.size(value, parts.name));
      parts.write(writer, value);
      return writer.finish();
    },
    decode(bytes) {
      if (bytes.length > parts.maxBytes) throw tooLarge(parts.name, 'bytes', bytes.length, parts.maxBytes);
      return parts.read(asBuffer(bytes), parts.name);
    },
  };
}

const shapesOf = (ordered: NamedField[]): Record<string, FieldShape> =>
  Object.fromEntries(ordered.map(({ name, field }) => [name, field.shape]));

/** A message whose fields are all present (or take their default). `rules` checks what concerns several fields. */
export function message<F extends Fields>(
  name: string,
  maxBytes: number,
  fields: F,
  rules?: (value: MessageOf<F>, path: string) => void,
): Schema<MessageOf<F>> {
  const { ordered, byNumber } = index(name, fields);
  return withTopLevel<MessageOf<F>>({
    name,
    maxBytes,
    fields: shapesOf(ordered),
    size(value, path) {
      let total = 0;
      for (const named of ordered) total += named.field.size(value[named.name], named.path);
      if (total > maxBytes) throw tooLarge(path, 'bytes', total, maxBytes);
      rules?.(value, path);
      return total;
    },
    write(writer, value) {
      for (const named of ordered) named.field.write(writer, value[named.name]);
    },
    read(bytes, path) {
      const values = readFields(bytes, name, byNumber);
      const entries = ordered.map((named) => [named.name, named.field.complete(values.get(named.name), named.path)]);
      const value = Object.fromEntries(entries) as MessageOf<F>;
      rules?.(value, path);
      return value;
    },
  });
}

/** A message of which exactly one field is present, as a union told apart by `kind`. */
export function oneOf<F extends Fields>(name: string, maxBytes: number, fields: F): Schema<OneOf<F>> {
  const { ordered, byNumber } = index(name, fields);
  const fieldOf = (kind: string): NamedField => {
    const named = ordered.find((candidate) => candidate.name === kind);
    if (named === undefined) throw invalid(name, 'unknown kind');
    return named;
  };
  return withTopLevel<OneOf<F>>({
    name,
    maxBytes,
    fields: shapesOf(ordered),
    size(value, path) {
      const named = fieldOf(value.kind);
      const total = named.field.size(value.value, named.path);
      if (total > maxBytes) throw tooLarge(path, 'bytes', total, maxBytes);
      return total;
    },
    write(writer, value) {
      fieldOf(value.kind).field.write(writer, value.value);
    },
    read(bytes, path) {
      const [only, ...others] = readFields(bytes, name, byNumber);
      if (only === undefined) throw invalid(path, 'has none of the kinds known here');
      if (others.length > 0) throw invalid(path, 'has more than one kind');
      return { kind: only[0], value: only[1] } as OneOf<F>;
    },
  });
}

/** A message inside a message; always present. */
export function nested<T>(number: number, schema: Schema<T>): Field<T> {
  return {
    shape: { number, type: schema.name, repeated: false },
    wireType: WIRE_LENGTH,
    size: (value, path) => delimitedSize(number, schema.size(value, path)),
    write(writer, value) {
      writer.varint(number * 8 + WIRE_LENGTH);
      writer.varint(schema.size(value, schema.name));
      schema.write(writer, value);
    },
    read(reader, earlier, path) {
      if (earlier !== undefined) throw invalid(path, 'is there twice');
      return schema.read(reader.view(path, schema.maxBytes), path);
    },
    complete(value, path) {
      if (value === undefined) throw invalid(path, 'is missing');
      return value;
    },
  };
}

/** A list of messages, counted before each one is decoded. */
export function repeated<T>(number: number, schema: Schema<T>, count: { min: number; max: number }): Field<T[]> {
  return {
    shape: { number, type: schema.name, repeated: true },
    wireType: WIRE_LENGTH,
    size(values, path) {
      checkCount(values.length, count, path);
      return values.reduce((total, value) => total + delimitedSize(number, schema.size(value, path)), 0);
    },
    write(writer, values) {
      for (const value of values) {
        writer.varint(number * 8 + WIRE_LENGTH);
        writer.varint(schema.size(value, schema.name));
        schema.write(writer, value);
      }
    },
    read(reader, earlier, path) {
      const values = earlier ?? [];
      if (values.length >= count.max) throw tooLarge(path, 'items', values.length + 1, count.max);
      values.push(schema.read(reader.view(path, schema.maxBytes), path));
      return values;
    },
    complete(values, path) {
      checkCount(values?.length ?? 0, count, path);
      return values ?? [];
    },
  };
}

export function checkCount(actual: number, count: { min: number; max: number }, path: string): void {
  if (actual > count.max) throw tooLarge(path, 'items', actual, count.max);
  if (actual < count.min) throw invalid(path, `has ${actual} items, at least ${count.min} are needed`);
}
