import type { Chooser } from './mutations.js';

const MAX_CHANGES = 3;
const MAX_DEPTH = 200;

/** Stands in hostile values; must not come back in an error. */
export const PLANTED_SECRET = 'planted-secret-4711';

const VALUES: readonly (() => unknown)[] = [
  () => null,
  () => true,
  () => '',
  () => PLANTED_SECRET,
  () => PLANTED_SECRET.repeat(1_000),
  () => '\ud800\u0000\u202e',
  () => 0,
  () => -1,
  () => 0.5,
  () => 1e308,
  () => Number.MAX_SAFE_INTEGER + 1,
  () => [],
  () => ({}),
  () => [[PLANTED_SECRET]],
  () => ({ [PLANTED_SECRET]: PLANTED_SECRET }),
  () => Array.from({ length: 5_000 }, () => PLANTED_SECRET),
  (): unknown => JSON.parse('{"__proto__":{"polluted":true},"constructor":{"prototype":{"polluted":true}}}'),
  (): unknown => JSON.parse('['.repeat(MAX_DEPTH) + ']'.repeat(MAX_DEPTH)),
];

/** A copy of a JSON value with one to three places changed: values of other types, keys left out, added and doubled. */
export function mutatedJson(choose: Chooser, value: unknown): unknown {
  let result: unknown = structuredClone(value);
  for (let left = choose.integer(1, MAX_CHANGES); left > 0; left -= 1) result = changed(choose, result);
  return result;
}

function changed(choose: Chooser, value: unknown): unknown {
  const goesDeeper = choose.integer(0, 3) > 0;
  if (Array.isArray(value) && value.length > 0 && goesDeeper) {
    const list: unknown[] = [...(value as unknown[])];
    const at = choose.integer(0, list.length - 1);
    const kept = choose.integer(0, 3);
    if (kept === 0) list.splice(at, 1);
    else if (kept === 1) list.push(list[at]);
    else list[at] = changed(choose, list[at]);
    return list;
  }
  if (typeof value === 'object' && value !== null && !Array.isArray(value) && goesDeeper)
    return withChangedKey(choose, value);
  return choose.pick(VALUES)();
}

function withChangedKey(choose: Chooser, value: object): object {
  const entries = Object.entries(value);
  if (entries.length === 0 || choose.integer(0, 5) === 0) {
    return Object.fromEntries([
      ...entries,
      [choose.pick(['extra', PLANTED_SECRET, 'toString', '']), choose.pick(VALUES)()],
    ]);
  }
  const at = choose.integer(0, entries.length - 1);
  if (choose.integer(0, 4) === 0) return Object.fromEntries(entries.filter((_, index) => index !== at));
  return Object.fromEntries(entries.map(([key, old], index) => [key, index === at ? changed(choose, old) : old]));
}
