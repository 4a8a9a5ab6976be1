import { expect, it } from 'vitest';
import { Cleanups } from './support/cleanups.js';

it('takes every step, the last first, also when some fail', async () => {
  const cleanups = new Cleanups();
  const taken: string[] = [];
  cleanups.add(() => taken.push('first'));
  cleanups.add(() => Promise.reject(new Error('later')));
  cleanups.add(() => {
    throw new Error('at once');
  });
  cleanups.add(() => taken.push('last'));
  await expect(cleanups.run()).rejects.toMatchObject({
    errors: [new Error('at once'), new Error('later')],
  });
  expect(taken).toEqual(['last', 'first']);
  // Nothing is undone twice.
  await cleanups.run();
});
