import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { MuserError } from '../src/errors.js';
import { Reader, varintSize, Writer } from '../src/wire/bytes.js';
import {
  bool,
  bytes,
  double,
  enumeration,
  fixedBytes,
  names,
  oneName,
  text,
  texts,
  uint32,
  uint64,
} from '../src/wire/fields.js';
import { message, nested, repeated, type Schema } from '../src/wire/schema.js';
import { expectCode } from './support/errors.js';

const hex = (value: string): Buffer => Buffer.from(value.replaceAll(' ', ''), 'hex');
const colours = enumeration<'red' | 'blue'>('Colour', { red: 1, blue: 2 });
const small = message('Small', 10, { value: uint32(1, { min: 1, max: 9 }) });
const all = message('All', 1000, {
  a: uint32(1),
  b: uint64(2),
  c: bool(3),
  d: double(4),
  e: bytes(5, { max: 8 }),
  f: text(6, { maxBytes: 8 }),
  g: texts(7, { maxBytes: 4, count: { min: 0, max: 2 } }),
  h: names(8, colours, { min: 0, max: 3 }),
  i: repeated(9, small, { min: 0, max: 2 }),
});
const empty = { a: 0, b: 0, c: false, d: 0, e: Buffer.alloc(0), f: '', g: [], h: [], i: [] };
const one = message('One', 100, { colour: oneName(1, colours), small: nested(2, small), id: fixedBytes(3, 2) });

describe('varints', () => {
  it('come back for every safe integer, in the size that was computed', () => {
    fc.assert(
      fc.property(
        fc.oneof(fc.maxSafeNat(), fc.nat(300), fc.constantFrom(2 ** 32 - 1, 2 ** 32, 2 ** 53 - 1)),
        (value) => {
          const writer = new Writer(varintSize(value));
          writer.varint(value);
          const reader = new Reader(writer.finish());
          expect(reader.varint('x')).toBe(value);
          expect(reader.done).toBe(true);
        },
      ),
    );
  });

  it.each([
    ['', 'cut'],
    ['80', 'cut'],
    ['8000', 'longer than needed'],
    ['80808080808080 10', 'above 2^53 - 1'],
    ['ffffffffffffffffff01', 'above 2^53 - 1'],
    ['ffffffffffffffffffff01', 'longer than 10 bytes'],
  ])('%s is refused (%s)', (value) =>
    expectCode(() => new Reader(hex(value)).varint('x'), 'MESSAGE_INVALID').then(() => undefined),
  );
});

describe('decoding', () => {
  it('of nothing gives the defaults', () => expect(all.decode(Buffer.alloc(0))).toEqual(empty));

  it('takes fields in any order and skips those that are not known', () => {
    const known = '0805 1007';
    expect(all.decode(hex('1007 0805'))).toEqual({ ...empty, a: 5, b: 7 });
    const unknown = ['f00105', 'f001ffffffffffffffffff01', 'f1010102030405060708', 'f20103616263', 'f50101020304'];
    expect(all.decode(hex(`${unknown.join('')} ${known} ${unknown.join('')}`))).toEqual({ ...empty, a: 5, b: 7 });
  });

  it('takes minus zero for zero', () => expect(all.decode(hex('21 0000000000000080')).d).toBe(0));

  it('gives byte fields as views, not copies', () => {
    const encoded = hex('2a03 010203');
    const value = all.decode(encoded);
    encoded[2] = 9;
    expect([...value.e]).toEqual([9, 2, 3]);
  });

  it.each([
    ['wrong wire type of a number', '0d00000000'],
    ['wrong wire type of bytes', '2801'],
    ['wrong wire type of a double', '2001'],
    ['unpacked list of names', '4001'],
    ['a scalar twice', '0805 0805'],
    ['a default twice', '0800 0800'],
    ['bytes twice', '2a00 2a00'],
    ['a list of names twice', '420101 420101'],
    ['a group', '0b 0c'],
    ['an unknown group', 'f301 f401'],
    ['wire type 6', 'f601'],
    ['wire type 7', 'f701'],
    ['field number 0', '0001'],
    ['field number above 2^29 - 1', '80808080 10 01'],
    ['a cut tag', '80'],
    ['a missing value', '08'],
    ['a cut double', '21 00000000'],
    ['a cut unknown value', 'f20105 6162'],
    ['a cut unknown fixed32', 'f501 0102'],
    ['an unknown varint of 11 bytes', 'f001 ffffffffffffffffffff01'],
    ['an announced length beyond the end', '2a08 01'],
    ['a boolean of 2', '1802'],
    ['a name that is not known', '420103'],
    ['the unspecified name', '420100'],
    ['NaN', '21 000000000000f87f'],
    ['infinity', '21 000000000000f07f'],
    ['a negative number', '21 000000000000f0bf'],
    ['text that is not UTF-8', '3202 c328'],
    ['a lone surrogate', '3203 eda080'],
    ['an empty text in a list', '3a00'],
    ['a nested value below its minimum', '4a00'],
  ])('refuses %s', (_, value) => expectCode(() => all.decode(hex(value)), 'MESSAGE_INVALID').then(() => undefined));

  it.each([
    ['bytes', '2a09 010203040506070809'],
    ['a text', '3209 616161616161616161'],
    ['a list of texts', '3a0161 3a0161 3a0161'],
    ['a list of names', '4204 01010101'],
    ['a list of messages', '4a020801 4a020801 4a020801'],
    ['an integer of 33 bits', '08 8080808010'],
    ['an announced length of 2^40', '2a 808080808020'],
    ['a list of names of 2^31', '42 8080808008'],
  ])('refuses %s above its limit', (_, value) =>
    expectCode(() => all.decode(hex(value)), 'MESSAGE_TOO_LARGE').then(() => undefined),
  );

  it('refuses a message above its limit before reading it', async () => {
    await expectCode(() => small.decode(Buffer.alloc(11, 0xff)), 'MESSAGE_TOO_LARGE');
    await expectCode(() => small.decode(Buffer.alloc(10, 0xff)), 'MESSAGE_INVALID');
  });

  it.each([
    ['a name', '12020801 1a020102'],
    ['a message', '0801 1a020102'],
    ['bytes', '0801 12020801'],
  ])('refuses a message without %s that is required', (_, value) =>
    expectCode(() => one.decode(hex(value)), 'MESSAGE_INVALID').then(() => undefined),
  );

  it.each(['0801 0801 12020801 1a020102', '0801 12020801 12020801 1a020102'])('refuses %s: required twice', (value) =>
    expectCode(() => one.decode(hex(value)), 'MESSAGE_INVALID').then(() => undefined),
  );

  it('never allocates what is only announced', () => {
    const announced = [hex('2a ffffffff07'), hex('f201 ffffffff07'), hex('4a ffffffff07'), hex('42 ffffffff07')];
    const before = process.memoryUsage().arrayBuffers;
    for (let i = 0; i < 1000; i++) {
      for (const value of announced) expect(() => all.decode(value)).toThrow(MuserError);
    }
    expect(process.memoryUsage().arrayBuffers - before).toBeLessThan(16 * 1024 * 1024);
  });
});

describe('encoding', () => {
  it('leaves defaults out and writes fields in the order of their numbers', () => {
    expect(all.encode(empty)).toHaveLength(0);
    const full = { ...empty, i: [{ value: 1 }], h: ['blue' as const, 'red' as const], f: 'é', c: true, a: 300 };
    expect(all.encode(full)).toEqual(hex('08ac02 1801 3202c3a9 42020201 4a020801'));
  });

  it.each([
    { a: -1 },
    { a: 1.5 },
    { a: Number.NaN },
    { b: 2 ** 53 },
    { d: -1 },
    { d: Number.POSITIVE_INFINITY },
    { g: [''] },
    { h: ['green'] },
    { h: ['toString'] },
    { i: [{ value: 0 }] },
    { a: '1' },
    { c: 1 },
    { e: 'text' },
    { f: 5 },
  ])('refuses %o', (changes) =>
    expectCode(() => (all as Schema<unknown>).encode({ ...empty, ...changes }), 'MESSAGE_INVALID').then(
      () => undefined,
    ),
  );

  it.each([
    { a: 2 ** 32 },
    { e: Buffer.alloc(9) },
    { f: 'ééééé' },
    { g: ['a', 'b', 'c'] },
    { g: ['12345'] },
    { h: ['red', 'red', 'red', 'red'] },
    { i: [{ value: 1 }, { value: 1 }, { value: 1 }] },
    { i: [{ value: 10 }] },
  ])('refuses %o above its limit', (changes) =>
    expectCode(() => (all as Schema<unknown>).encode({ ...empty, ...changes }), 'MESSAGE_TOO_LARGE').then(
      () => undefined,
    ),
  );
});
