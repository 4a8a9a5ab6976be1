import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { kvKinds, layerKinds, ropeLayerNames, wireTypes } from '../src/geometry.js';
import { nodeStates, SCHEMAS, unavailableReasons } from '../src/messages.js';
import type { Schema } from '../src/wire/schema.js';
import { arbitraries } from './support/arbitraries.js';
import { definition, enumValueName, protobufjs, toProtobufjs } from './support/proto.js';

interface Descriptor {
  field?: { name: string; number: number; type: string; label: string; typeName: string }[];
  value?: { name: string; number: number }[];
}

const descriptorOf = (name: string): Descriptor =>
  (definition[`muser.v1.${name}`] as unknown as { type: Descriptor }).type;
const messageNames = Object.keys(SCHEMAS) as (keyof typeof SCHEMAS)[];
const enumerations = [layerKinds, wireTypes, kvKinds, ropeLayerNames, nodeStates, unavailableReasons];
const camel = (name: string): string => name.replace(/_([a-z0-9])/g, (_, letter: string) => letter.toUpperCase());

/** Buffers and other byte arrays as hex, so that only the content is compared. */
function plain(value: unknown): unknown {
  if (value instanceof Uint32Array) return [...value];
  if (value instanceof Uint8Array) return Buffer.from(value).toString('hex');
  if (Array.isArray(value)) return value.map(plain);
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, plain(item)]));
}

describe('the schemas and the .proto files', () => {
  it('have the same messages', () => {
    const declared = Object.entries(definition)
      .filter(([, value]) => (value as { format?: string }).format === 'Protocol Buffer 3 DescriptorProto')
      .map(([name]) => name.replace('muser.v1.', ''));
    expect(declared.sort()).toEqual([...messageNames].sort());
  });

  it.each(messageNames)('%s has the same fields', (name) => {
    const declared = (descriptorOf(name).field ?? []).map((field) => ({
      name: camel(field.name),
      number: field.number,
      type: field.typeName || field.type.replace('TYPE_', '').toLowerCase(),
      repeated: field.label === 'LABEL_REPEATED',
    }));
    const own = Object.entries(SCHEMAS[name].fields).map(([field, shape]) => ({ name: field, ...shape }));
    expect(own).toEqual(declared);
  });

  it.each(enumerations)('$name has the same values', ({ name, numbers }) => {
    const own = Object.entries<number>(numbers).map(([key, number]) => ({ name: enumValueName(name, key), number }));
    expect([{ name: enumValueName(name, 'unspecified'), number: 0 }, ...own]).toEqual(
      (descriptorOf(name).value ?? []).map((value) => ({ name: value.name, number: value.number })),
    );
  });

  it.each(messageNames)('%s means the same to protobufjs, in both directions', (name) => {
    const schema = SCHEMAS[name] as unknown as Schema<object>;
    const theirs = protobufjs(name);
    fc.assert(
      fc.property(arbitraries[name] as fc.Arbitrary<object>, (value) => {
        const encoded = schema.encode(value);
        const expected = plain(theirs.deserialize(theirs.serialize(toProtobufjs(name, value))));
        expect(plain(theirs.deserialize(encoded))).toEqual(expected);
        expect(plain(schema.decode(theirs.serialize(toProtobufjs(name, value))))).toEqual(plain(value));
        expect(plain(schema.decode(encoded))).toEqual(plain(value));
        expect(schema.encode(schema.decode(encoded)).equals(encoded)).toBe(true);
      }),
    );
  });
});
