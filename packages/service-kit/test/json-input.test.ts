import { Readable } from 'node:stream';

import { describe, expect, it } from 'vitest';

import { readJsonObject } from '../src/index.js';

const input = (...blocks: string[]) => Readable.from(blocks.map((block) => Buffer.from(block)));

describe('readJsonObject', () => {
  it('reads an object that comes in pieces, cut inside a character', async () => {
    const bytes = Buffer.from('{"name":"Zoë"}');
    const pieces = Readable.from([bytes.subarray(0, 12), bytes.subarray(12)]);
    expect(await readJsonObject(pieces, 100)).toEqual({ name: 'Zoë' });
  });

  it('reads no more than it may', async () => {
    await expect(readJsonObject(input('{"a":', '"secret"}'), 10)).rejects.toMatchObject({ code: 'MESSAGE_TOO_LARGE' });
  });

  it.each(['', 'secret', '"secret"', '["secret"]', 'null', '{"secret"'])(
    'refuses %j without quoting it',
    async (text) => {
      const refusal = expect(readJsonObject(input(text), 100)).rejects;
      await refusal.toMatchObject({
        code: 'INVALID_REQUEST',
        message: expect.not.stringContaining('secret') as string,
      });
    },
  );
});
