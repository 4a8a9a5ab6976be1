import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFile, stat, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

import Database from 'better-sqlite3';
import { Random } from '@muser/testing';
import { describe, expect, it, onTestFinished } from 'vitest';

import { MIGRATIONS } from '../../src/registry/migrations.js';
import { SqliteStore } from '../../src/registry/sqlite-store.js';
import { temporaryFolder } from '../support/folders.js';
import { enrollmentOf, testRegistryStore } from './compliance.js';

const FIXTURE = fileURLToPath(new URL('../fixtures/enroll-forever.mjs', import.meta.url));

async function newFile(): Promise<string> {
  return join(await temporaryFolder(), 'registry.sqlite');
}

function open(file: string): SqliteStore {
  const store = SqliteStore.open(file);
  onTestFinished(() => store.close());
  return store;
}

testRegistryStore('SqliteStore', async () => open(await newFile()));

describe('SqliteStore', () => {
  it('has the same content when it is opened again', async () => {
    const file = await newFile();
    const first = open(file);
    await first.bind({ coordinatorId: 'n1', authoritySha256: 'aa' }, 1);
    await first.enroll(enrollmentOf(), 2);
    const [nodes, audit] = [await first.list(), await first.audit()];
    await first.close();
    const second = open(file);
    expect(await second.list()).toEqual(nodes);
    expect(await second.audit()).toEqual(audit);
    expect(await second.owner()).toEqual({ coordinatorId: 'n1', authoritySha256: 'aa' });
    expect((await stat(file)).mode & 0o077).toBe(0);
  });

  it('does not let anybody change the audit log or bring a revoked node back, not even by SQL', async () => {
    const file = await newFile();
    const store = open(file);
    const { nodeId } = await store.enroll(enrollmentOf(), 1);
    await store.revoke(nodeId, 2);
    const database = new Database(file);
    onTestFinished(() => {
      database.close();
    });
    expect(() => database.exec("UPDATE audit SET details = '{}'")).toThrow('append-only');
    expect(() => database.exec('DELETE FROM audit')).toThrow('append-only');
    expect(() => database.exec('UPDATE nodes SET revoked_at_ms = NULL')).toThrow('stays revoked');
    expect(await store.audit()).toHaveLength(2);
  });

  it('leaves a file alone that is not a registry', async () => {
    const file = await newFile();
    await writeFile(file, 'not a database, but long enough to be taken for one. '.repeat(100));
    const before = await readFile(file);
    expect(() => open(file)).toThrow(
      expect.objectContaining({ code: 'CONFIG_INVALID', message: expect.stringContaining(file) as string }) as Error,
    );
    expect(await readFile(file)).toEqual(before);
  });

  it('leaves a damaged registry alone', async () => {
    const file = await newFile();
    const store = open(file);
    for (let node = 0; node < 120; node += 1) await store.enroll(enrollmentOf(), node);
    await store.close();
    const whole = await readFile(file);
    const damages: [string, (bytes: Buffer) => Buffer][] = [
      ['a page of zeros', (bytes) => bytes.fill(0, 4_096, 2 * 4_096)],
      [
        'noise in every other page',
        (bytes) => {
          for (let at = 4_096; at + 4_096 < bytes.length; at += 8_192) bytes.fill(0xa5, at + 8, at + 512);
          return bytes;
        },
      ],
      ['its end cut off', (bytes) => bytes.subarray(0, bytes.length / 2)],
    ];
    for (const [name, damage] of damages) {
      await truncate(file, 0);
      const before = Buffer.from(damage(Buffer.from(whole)));
      await writeFile(file, before);
      expect(() => open(file), name).toThrow(expect.objectContaining({ code: 'CONFIG_INVALID' }) as Error);
      expect((await readFile(file)).equals(before), name).toBe(true);
    }
  });

  it('leaves a registry alone that a later version wrote', async () => {
    const file = await newFile();
    await open(file).close();
    const database = new Database(file);
    database.pragma(`user_version = ${MIGRATIONS.length + 1}`);
    database.close();
    expect(() => open(file)).toThrow('start a later version');
  });

  it('says so when another program holds it, and goes on afterwards', async () => {
    const file = await newFile();
    const store = open(file);
    await store.enroll(enrollmentOf(), 1);
    const other = new Database(file);
    onTestFinished(() => {
      other.close();
    });
    other.exec('BEGIN IMMEDIATE');
    await expect(store.enroll(enrollmentOf(), 2)).rejects.toMatchObject({
      code: 'UNAVAILABLE',
      message: expect.stringContaining('SQLITE_BUSY') as string,
    });
    other.exec('ROLLBACK');
    expect(await store.list()).toHaveLength(1);
    await store.enroll(enrollmentOf(), 3);
  });

  it('loses nothing that it acknowledged when its process is killed', async () => {
    const file = await newFile();
    const random = new Random(1);
    const acknowledged = new Map<string, string>();
    for (let round = 0; round < 6; round += 1) {
      const child = spawn(process.execPath, [FIXTURE, file], { stdio: ['ignore', 'pipe', 'inherit'] });
      let lines = '';
      const enough = 3 + random.integer(0, 60);
      for await (const data of child.stdout) {
        lines += String(data);
        if (lines.split('\n').length > enough) child.kill('SIGKILL');
      }
      if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
      for (const line of lines.split('\n').slice(0, -1)) {
        const [action = '', nodeId = ''] = line.split(' ');
        acknowledged.set(nodeId, action);
      }
      const store = SqliteStore.open(file);
      const nodes = new Map((await store.list()).map((node) => [node.nodeId, node]));
      const audit = await store.audit();
      await store.close();
      expect(acknowledged.size).toBeGreaterThan(0);
      for (const [nodeId, action] of acknowledged) {
        const node = nodes.get(nodeId);
        expect(node, `${nodeId} was ${action}`).toBeDefined();
        if (action !== 'enrolled') expect(node?.name).toBe('b');
        if (action === 'revoked') expect(node?.revokedAtMs).toBe(3);
      }
      // Every change has its audit entry, and no entry is there without its change.
      for (const { nodeId, name, revokedAtMs } of nodes.values()) {
        const actions = audit.filter((entry) => entry.nodeId === nodeId).map(({ action }) => action);
        const expected = [
          'node-enrolled',
          ...(name === 'b' ? ['node-changed'] : []),
          ...(revokedAtMs === null ? [] : ['node-revoked']),
        ];
        expect(actions).toEqual(expected);
      }
    }
  });
});
