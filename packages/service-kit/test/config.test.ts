import { mkdtemp, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { z } from 'zod';

import { ConfigError, configTable, fields, loadConfig } from '../src/index.js';

const schema = z.strictObject({
  stateDir: fields.stateDir(),
  httpPort: fields.port('Port of the API.'),
  coordinator: z.string().nullable().default(null).meta({ description: 'Address of the coordinator | none.' }),
  flash: z.boolean().default(true).meta({ description: 'Flash attention.' }),
  budgets: z
    .strictObject({
      totalBytes: z.int().min(1).default(1024).meta({ description: 'Bytes for all.', unit: 'bytes' }),
    })
    .prefault({}),
  names: z.array(z.string()).default([]).meta({ description: 'Names.' }),
  logLevel: fields.logLevel(),
});
const envPrefix = 'MUSER_TEST_';

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'muser-config-'));
});
afterEach(() => rm(folder, { recursive: true }));

async function fileWith(text: string): Promise<string> {
  const file = join(folder, 'config.json');
  await writeFile(file, text);
  return file;
}

async function failure(promise: Promise<unknown>): Promise<ConfigError> {
  const error: unknown = await promise.then(
    () => undefined,
    (reason: unknown) => reason,
  );
  if (!(error instanceof ConfigError)) throw new Error('expected a ConfigError', { cause: error });
  return error;
}

describe('loadConfig', () => {
  it('fills in the defaults of the schema, nested ones too', async () => {
    const config = await loadConfig(schema, { env: { MUSER_TEST_STATE_DIR: '/s' }, envPrefix });
    expect(config).toEqual({
      stateDir: '/s',
      httpPort: 0,
      coordinator: null,
      flash: true,
      budgets: { totalBytes: 1024 },
      names: [],
      logLevel: 'info',
    });
  });

  it('lets the environment win over the file', async () => {
    const file = await fileWith('{"stateDir":"/file","httpPort":1,"budgets":{"totalBytes":1}}');
    const env = { MUSER_TEST_HTTP_PORT: '2', MUSER_TEST_BUDGETS_TOTAL_BYTES: '2', MUSER_OTHER: 'x', PATH: '/bin' };
    const config = await loadConfig(schema, { file, env, envPrefix });
    expect(config).toMatchObject({ stateDir: '/file', httpPort: 2, budgets: { totalBytes: 2 } });
  });

  it('reads variables by the kind of their setting', async () => {
    const env = {
      MUSER_TEST_STATE_DIR: '123',
      MUSER_TEST_COORDINATOR: 'null',
      MUSER_TEST_FLASH: 'false',
      MUSER_TEST_NAMES: '["a","b"]',
    };
    const config = await loadConfig(schema, { env, envPrefix });
    expect(config).toMatchObject({ stateDir: '123', coordinator: null, flash: false, names: ['a', 'b'] });
    const named = await loadConfig(schema, { env: { ...env, MUSER_TEST_COORDINATOR: 'host:1' }, envPrefix });
    expect(named.coordinator).toBe('host:1');
  });

  it('names every unknown, missing and wrong key, and shows no value', async () => {
    const file = await fileWith('{"htpPort":1,"flash":"hunter2","budgets":{"bytes":"hunter2"}}');
    const { problems, message, code } = await failure(loadConfig(schema, { file, env: {}, envPrefix }));
    expect(code).toBe('CONFIG_INVALID');
    const all = problems.join('\n');
    expect(all).toContain('unknown key "htpPort"');
    expect(all).toContain('unknown key "budgets.bytes"');
    expect(all).toMatch(/^stateDir: /m);
    expect(all).toMatch(/^flash: .*boolean/m);
    expect(message).toContain(file);
    expect(message).not.toContain('hunter2');
  });

  it('names an unknown variable under its own prefix', async () => {
    const { message } = await failure(loadConfig(schema, { env: { MUSER_TEST_HTTPPORT: '1' }, envPrefix }));
    expect(message).toContain('MUSER_TEST_HTTPPORT');
    expect(message).toContain('MUSER_TEST_HTTP_PORT');
  });

  it.each([
    ['{"stateDir":"hunter2",}', 'not valid JSON'],
    ['[]', 'must hold a JSON object'],
    ['null', 'must hold a JSON object'],
    [`{"stateDir":"${'x'.repeat(1 << 20)}"}`, 'longer than'],
  ])('refuses a file that holds %.20s', async (text, expected) => {
    const { message } = await failure(loadConfig(schema, { file: await fileWith(text), env: {}, envPrefix }));
    expect(message).toContain(expected);
    expect(message).not.toContain('hunter2');
  });

  it('does not read a file to its end that is far too long', async () => {
    const file = await fileWith('');
    await truncate(file, 5 * 2 ** 30);
    const { message } = await failure(loadConfig(schema, { file, env: {}, envPrefix }));
    expect(message).toContain('longer than');
  });

  it('says that a file is missing', async () => {
    const { message } = await failure(loadConfig(schema, { file: join(folder, 'none'), env: {}, envPrefix }));
    expect(message).toContain('ENOENT');
  });

  it('freezes the result to its depth', async () => {
    const config = await loadConfig(schema, { env: { MUSER_TEST_STATE_DIR: '/s' }, envPrefix });
    expect(() => Object.assign(config, { httpPort: 1 })).toThrow(TypeError);
    expect(() => Object.assign(config.budgets, { totalBytes: 1 })).toThrow(TypeError);
    expect(() => (config.names as string[]).push('x')).toThrow(TypeError);
  });

  it('does not accept a schema that would swallow unknown keys', async () => {
    const loose = z.strictObject({ inner: z.object({ a: z.string() }).prefault({ a: '' }) });
    await expect(loadConfig(loose, { env: {}, envPrefix })).rejects.toThrow('must be a z.strictObject');
  });
});

describe('configTable', () => {
  it('has a row for each setting with variable, kind, default, unit and meaning', () => {
    const rows = configTable(schema, envPrefix).trimEnd().split('\n');
    expect(rows).toHaveLength(2 + 7);
    expect(rows).toContain(
      '| `budgets.totalBytes` | `MUSER_TEST_BUDGETS_TOTAL_BYTES` | integer 1.. | `1024` | bytes | Bytes for all. |',
    );
    expect(rows).toContain(
      '| `coordinator` | `MUSER_TEST_COORDINATOR` | string or null | `null` |  | Address of the coordinator \\| none. |',
    );
    expect(rows.find((row) => row.includes('`stateDir`'))).toContain('none: must be given');
    expect(rows.find((row) => row.includes('`httpPort`'))).toContain('integer 0..65535');
  });

  it('shows words instead of a default that differs from machine to machine', () => {
    expect(configTable(schema, envPrefix, { httpPort: 'any' })).toMatch(/`httpPort`.*\| any \|/);
  });

  it('insists on a description', () => {
    expect(() => configTable(z.strictObject({ a: z.string() }), envPrefix)).toThrow('a has no description');
  });
});
