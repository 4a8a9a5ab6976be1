import { expect, test } from 'vitest';
import { RowOrigins } from '../../src/engine/row-origins.js';

/** Rows [0, 10) were computed here, then some are of `one`, then of `other`, then of `one` again. */
function origins(): RowOrigins {
  const rows = new RowOrigins();
  rows.received('one', 10, 20);
  rows.received('other', 20, 25);
  rows.received('other', 20, 30);
  rows.received('one', 30, 40);
  return rows;
}

test('every producer is known that rows are of, and its first row', () => {
  expect(origins().producerIds).toEqual(['one', 'other']);
  expect(origins().firstRowOf(['other'])).toBe(20);
  expect(origins().firstRowOf(['other', 'one'])).toBe(10);
  expect(origins().firstRowOf(['third'])).toBeNull();
  expect(new RowOrigins().producerIds).toEqual([]);
});

test.each([
  [25, ['one', 'other']],
  [20, ['one']],
  [10, []],
  [0, []],
])('what goes back to row %i and on from there has rows of %j', (position, producerIds) => {
  const rows = origins();
  rows.cut(position);
  expect(rows.producerIds).toEqual(producerIds);
});

test('rows that are received anew are of the new producer, and so is nothing after them', () => {
  const rows = origins();
  rows.received('third', 15, 40);
  expect(rows.producerIds).toEqual(['one', 'third']);
  expect(rows.firstRowOf(['third'])).toBe(15);
  rows.cut(16);
  expect(rows.producerIds).toEqual(['one', 'third']);
});
