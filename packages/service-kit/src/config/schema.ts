import { z } from 'zod';

/** One setting that is not an object itself. */
export interface Leaf {
  path: string[];
  variable: string;
  schema: z.ZodType;
}

/** All settings of a schema in order, with the environment variable of each. */
export function leavesOf(schema: z.ZodObject, envPrefix: string, path: string[] = []): Leaf[] {
  if (!(schema.def.catchall instanceof z.ZodNever)) {
    throw new TypeError(`the configuration object "${path.join('.')}" must be a z.strictObject`);
  }
  return Object.entries(schema.shape).flatMap(([key, field]) => {
    const inner = unwrap(field as z.ZodType);
    const innerPath = [...path, key];
    if (inner instanceof z.ZodObject) return leavesOf(inner, envPrefix, innerPath);
    return [
      { path: innerPath, variable: envPrefix + innerPath.map(screamingSnake).join('_'), schema: field as z.ZodType },
    ];
  });
}

/**
 * The value that a variable's text stands for: what the text means as JSON where the setting accepts that (numbers,
 * booleans, null, lists), else the text itself, so that a string needs no quotes.
 */
export function valueFromText(schema: z.ZodType, text: string): unknown {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value !== 'string' && schema.safeParse(value).success) return value;
  } catch {
    // Not JSON, therefore a plain string.
  }
  return text;
}

function unwrap(schema: z.ZodType): z.ZodType {
  if (schema instanceof z.ZodDefault || schema instanceof z.ZodPrefault || schema instanceof z.ZodOptional) {
    return unwrap(schema.unwrap() as z.ZodType);
  }
  return schema;
}

function screamingSnake(key: string): string {
  return key.replace(/([a-z0-9])([A-Z])/g, '$1_$2').toUpperCase();
}
