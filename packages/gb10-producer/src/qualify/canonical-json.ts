/** A value that JSON has a form for. */
export type Json = null | boolean | number | string | readonly Json[] | { readonly [key: string]: Json };

/**
 * The one form of a value as JSON (RFC 8785): no white space, keys sorted by UTF-16 code units, numbers as ECMAScript
 * writes them. So equal values have equal bytes, and a signature holds whatever a file's formatting.
 * @throws RangeError for numbers that JSON has no form for
 */
export function canonicalJson(value: Json): string {
  if (typeof value === 'number' && !Number.isFinite(value)) throw new RangeError(`${value} has no form in JSON`);
  if (value === null || typeof value !== 'object') return JSON.stringify(value);
  if (isList(value)) return `[${value.map(canonicalJson).join(',')}]`;
  const members = Object.keys(value)
    .sort()
    .map((key) => `${JSON.stringify(key)}:${canonicalJson(value[key] ?? null)}`);
  return `{${members.join(',')}}`;
}

function isList(value: object): value is readonly Json[] {
  return Array.isArray(value);
}
