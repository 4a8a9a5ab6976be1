import { fileURLToPath } from 'node:url';
import { loadSync } from '@grpc/proto-loader';
import { SCHEMAS } from '../../src/messages.js';
import type { Schema } from '../../src/wire/schema.js';

const at = (path: string): string => fileURLToPath(new URL(path, import.meta.url));

/** The .proto files as protobufjs understands them. */
export const definition = loadSync('every_message.proto', {
  includeDirs: [at('.'), at('../../../../proto')],
  keepCase: false,
  longs: Number,
  enums: String,
  defaults: true,
  oneofs: true,
  arrays: true,
});

interface Serializer {
  serialize(value: object): Buffer;
  deserialize(bytes: Buffer): object;
}

/** protobufjs' own serializer of a message of proto/muser/v1. */
export function protobufjs(name: string): Serializer {
  const service = definition['muser.v1.EveryMessage'] as unknown as Record<
    string,
    { requestSerialize: Serializer['serialize']; requestDeserialize: Serializer['deserialize'] }
  >;
  const method = service[name];
  if (method === undefined) throw new Error(`every_message.proto lacks ${name}`);
  return { serialize: method.requestSerialize, deserialize: method.requestDeserialize };
}

const upperSnake = (name: string): string => name.replace(/(?<=[a-z])(?=[A-Z])/g, '_').toUpperCase();
export const enumValueName = (type: string, name: string): string => `${upperSnake(type)}_${name.toUpperCase()}`;

/** One of our values in the form in which protobufjs takes it. */
export function toProtobufjs(name: string, value: object): object {
  const schema = (SCHEMAS as unknown as Record<string, Schema<unknown>>)[name];
  if (schema === undefined) throw new Error(`no schema ${name}`);
  const fields = name === 'PrefillFrame' ? unionFields(value) : Object.entries(value);
  return Object.fromEntries(
    fields.map(([key, item]) => {
      const shape = schema.fields[key];
      if (shape === undefined) throw new Error(`${name} has no field ${key}`);
      return [key, Array.isArray(item) ? item.map((one) => convert(shape.type, one)) : convert(shape.type, item)];
    }),
  );
}

function unionFields(value: object): [string, unknown][] {
  const { kind, value: content } = value as { kind: string; value: unknown };
  return [[kind, content]];
}

function convert(type: string, value: unknown): unknown {
  if (type in SCHEMAS) return toProtobufjs(type, value as object);
  if (value instanceof Uint32Array) {
    const bytes = Buffer.alloc(value.length * 4);
    value.forEach((item, i) => bytes.writeUInt32LE(item, i * 4));
    return bytes;
  }
  return definition[`muser.v1.${type}`] === undefined ? value : enumValueName(type, String(value));
}
