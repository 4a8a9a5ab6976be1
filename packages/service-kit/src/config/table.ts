import { z } from 'zod';

import { leavesOf } from './schema.js';

interface JsonSchema {
  type?: string | string[];
  enum?: unknown[];
  default?: unknown;
  description?: string;
  unit?: string;
  minimum?: number;
  maximum?: number;
  anyOf?: JsonSchema[];
  properties?: Record<string, JsonSchema>;
}

/**
 * A markdown table of every setting of a schema: key, variable, kind and range, default, unit, meaning. Unit and
 * meaning come from the field's `.meta({ unit, description })`, which must be the last call on the field.
 *
 * @param shownDefaults words for defaults that differ from machine to machine, by key
 */
export function configTable(
  schema: z.ZodObject,
  envPrefix: string,
  shownDefaults: Readonly<Record<string, string>> = {},
): string {
  const json = z.toJSONSchema(schema, { io: 'input', unrepresentable: 'any' }) as JsonSchema;
  const rows = leavesOf(schema, envPrefix).map(({ path, variable }) => {
    const field = fieldAt(json, path);
    const key = path.join('.');
    if (field.description === undefined) throw new TypeError(`the setting ${key} has no description`);
    const value = shownDefaults[key] ?? defaultOf(field);
    return [`\`${key}\``, `\`${variable}\``, kindOf(field), value, field.unit ?? '', field.description];
  });
  const head = ['Key', 'Environment', 'Kind', 'Default', 'Unit', 'Meaning'];
  return [head, head.map(() => '---'), ...rows].map((row) => `| ${row.map(escapeCell).join(' | ')} |\n`).join('');
}

function fieldAt(json: JsonSchema, path: readonly string[]): JsonSchema {
  let field = json;
  for (const key of path) field = field.properties?.[key] ?? {};
  return field;
}

function defaultOf(field: JsonSchema): string {
  return field.default === undefined ? 'none: must be given' : `\`${JSON.stringify(field.default)}\``;
}

function kindOf(field: JsonSchema): string {
  if (field.enum !== undefined) return field.enum.map((value) => JSON.stringify(value)).join(', ');
  if (field.anyOf !== undefined) return field.anyOf.map(kindOf).join(' or ');
  const type = Array.isArray(field.type) ? field.type.join(' or ') : (field.type ?? 'any');
  // zod gives every integer JavaScript's own bounds; only bounds that somebody chose are worth showing.
  const low = field.minimum === Number.MIN_SAFE_INTEGER ? undefined : field.minimum;
  const high = field.maximum === Number.MAX_SAFE_INTEGER ? undefined : field.maximum;
  if (low === undefined && high === undefined) return type;
  return `${type} ${low ?? ''}..${high ?? ''}`;
}

function escapeCell(text: string): string {
  return text.replaceAll('|', '\\|').replaceAll('\n', ' ');
}
