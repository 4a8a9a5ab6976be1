import type { z } from 'zod';

import { ServiceError } from '../errors.js';
import { readSmallFile } from '../files.js';
import { leavesOf, valueFromText } from './schema.js';

/** A configuration that cannot be used. `problems` has one line for each fault, with the key; values are never shown. */
export class ConfigError extends ServiceError {
  readonly problems: readonly string[];

  constructor(origin: string, problems: readonly string[], options?: ErrorOptions) {
    super('CONFIG_INVALID', `${origin}: ${problems.join('; ')}`, options);
    this.name = 'ConfigError';
    this.problems = problems;
  }
}

export type DeepReadonly<T> = T extends (infer E)[]
  ? readonly DeepReadonly<E>[]
  : T extends object
    ? { readonly [K in keyof T]: DeepReadonly<T[K]> }
    : T;

export interface LoadConfigOptions {
  /** JSON file with an object; without it only the environment counts. */
  file?: string;
  /** The environment, as an argument: `process.env` in a main, an own object in a test. */
  env: Readonly<Record<string, string | undefined>>;
  /**
   * What this process's variables begin with, for example `MUSER_DECODER_`: `httpPort` is then MUSER_DECODER_HTTP_PORT,
   * `budgets.totalBytes` MUSER_DECODER_BUDGETS_TOTAL_BYTES. Processes of one machine share an environment, so each has
   * a prefix of its own.
   */
  envPrefix: string;
}

const MAX_CONFIG_BYTES = 1 << 20;

/**
 * Reads one process's configuration: the schema's defaults, then the file, then the environment.
 * Every object in the schema must be a `z.strictObject`, so that an unknown key is an error that names it. The result
 * is frozen to its depth.
 *
 * @throws ConfigError naming every key that is unknown, missing or wrong.
 */
export async function loadConfig<S extends z.ZodObject>(
  schema: S,
  options: LoadConfigOptions,
): Promise<DeepReadonly<z.output<S>>> {
  const origin = options.file ?? 'configuration';
  const raw = options.file === undefined ? {} : await readObject(options.file);
  mergeEnvironment(raw, schema, options.env, options.envPrefix);
  const parsed = schema.safeParse(raw);
  if (!parsed.success) throw new ConfigError(origin, problemsOf(parsed.error));
  return deepFreeze(parsed.data) as DeepReadonly<z.output<S>>;
}

async function readObject(file: string): Promise<Record<string, unknown>> {
  const text = await readText(file);
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    // The parser's own message quotes the text, which may hold a secret.
    throw new ConfigError(file, ['not valid JSON']);
  }
  if (!isObject(value)) throw new ConfigError(file, ['must hold a JSON object']);
  return value;
}

async function readText(file: string): Promise<string> {
  let text: string | null;
  try {
    text = await readSmallFile(file, MAX_CONFIG_BYTES);
  } catch (error) {
    if (!(error instanceof ServiceError)) throw error;
    const problem = error.code === 'MESSAGE_TOO_LARGE' ? `longer than ${MAX_CONFIG_BYTES} bytes` : error.message;
    throw new ConfigError(file, [problem], { cause: error });
  }
  if (text === null) throw new ConfigError(file, ['cannot be read (ENOENT)']);
  return text;
}

function mergeEnvironment(
  raw: Record<string, unknown>,
  schema: z.ZodObject,
  env: LoadConfigOptions['env'],
  prefix: string,
): void {
  const leaves = new Map(leavesOf(schema, prefix).map((leaf) => [leaf.variable, leaf]));
  const unknown: string[] = [];
  for (const [variable, text] of Object.entries(env)) {
    if (text === undefined || !variable.startsWith(prefix)) continue;
    const leaf = leaves.get(variable);
    if (leaf === undefined) unknown.push(`unknown variable ${variable}`);
    else setPath(raw, leaf.path, valueFromText(leaf.schema, text));
  }
  if (unknown.length > 0) {
    throw new ConfigError('environment', [...unknown, `known: ${[...leaves.keys()].join(', ')}`]);
  }
}

function setPath(target: Record<string, unknown>, path: readonly string[], value: unknown): void {
  const [head, ...rest] = path;
  if (head === undefined) return;
  if (rest.length === 0) {
    target[head] = value;
    return;
  }
  const inner = target[head];
  const next = isObject(inner) ? inner : {};
  target[head] = next;
  setPath(next, rest, value);
}

function problemsOf(error: z.ZodError): string[] {
  return error.issues.flatMap((issue) => {
    const path = issue.path.map(String).join('.');
    if (issue.code !== 'unrecognized_keys') return [`${path === '' ? '(top level)' : path}: ${issue.message}`];
    return issue.keys.map((key) => `unknown key ${JSON.stringify(path === '' ? key : `${path}.${key}`)}`);
  });
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function deepFreeze<T>(value: T): T {
  if (typeof value !== 'object' || value === null) return value;
  for (const inner of Object.values(value)) deepFreeze(inner);
  return Object.freeze(value);
}
