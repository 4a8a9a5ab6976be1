import { closeSync, openSync } from 'node:fs';

import Database from 'better-sqlite3';

import { MuserError } from '@muser/protocol';

import { MIGRATIONS } from './migrations.js';
import type {
  AuditAction,
  AuditEntry,
  CertificateRenewal,
  Enrollment,
  NodeChange,
  NodeOrder,
  NodeRecord,
  NodeRole,
  RegistryOwner,
  RegistryStore,
} from './store.js';

interface NodeRow {
  node_id: string;
  name: string;
  role: NodeRole;
  addresses: string;
  signing_public_key: Buffer;
  enrolled_at_ms: number;
  certificate_expires_at_ms: number;
  revoked_at_ms: number | null;
}

/** Waiting blocks the event loop; nothing but a backup has the file for longer than an instant. */
const BUSY_TIMEOUT_MS = 500;

/** The registry in one SQLite file, for one coordinator. Every change is synced to disk before it is acknowledged. */
export class SqliteStore implements RegistryStore {
  readonly #database: Database.Database;

  private constructor(database: Database.Database) {
    this.#database = database;
  }

  /**
   * Opens the file, or makes it. A file that is damaged, or that a later version wrote, is left as it is.
   *
   * @throws MuserError CONFIG_INVALID (damaged, or from a later version), UNAVAILABLE (the folder or file cannot be used)
   */
  static open(file: string): SqliteStore {
    let database: Database.Database | undefined;
    try {
      // SQLite gives its other files the mode of this one.
      closeSync(openSync(file, 'a', 0o600));
      database = new Database(file, { timeout: BUSY_TIMEOUT_MS });
      refuseDamaged(database, file);
      database.pragma('journal_mode = WAL');
      database.pragma('synchronous = FULL');
      migrate(database, file);
      return new SqliteStore(database);
    } catch (error) {
      database?.close();
      throw storageError(error, file);
    }
  }

  owner(): Promise<RegistryOwner | null> {
    return this.#run(() => this.#owner());
  }

  bind(owner: RegistryOwner, atMs: number): Promise<void> {
    return this.#change(() => {
      const bound = this.#owner();
      if (bound === null) {
        this.#database
          .prepare('INSERT INTO owner (only_row, coordinator_id, authority_sha256) VALUES (1, ?, ?)')
          .run(owner.coordinatorId, owner.authoritySha256);
        this.#audit(atMs, 'registry-bound', owner.coordinatorId, { authoritySha256: owner.authoritySha256 });
      } else if (bound.coordinatorId !== owner.coordinatorId || bound.authoritySha256 !== owner.authoritySha256) {
        throw new MuserError('CONFIG_INVALID', `the registry belongs to coordinator ${bound.coordinatorId}`);
      }
    });
  }

  enroll(enrollment: Enrollment, atMs: number): Promise<NodeRecord> {
    return this.#change(() => {
      const { nodeId, name, role } = enrollment;
      const known = this.#find(nodeId);
      if (known !== null) refuseOtherNode(known, role);
      const addresses = enrollment.addresses.length > 0 ? enrollment.addresses : (known?.addresses ?? []);
      this.#database
        .prepare(
          `INSERT INTO nodes (node_id, name, role, addresses, signing_public_key, enrolled_at_ms, certificate_expires_at_ms)
           VALUES (@nodeId, @name, @role, @addresses, @key, @atMs, @expires)
           ON CONFLICT (node_id) DO UPDATE SET name = @name, addresses = @addresses, certificate_expires_at_ms = @expires`,
        )
        .run({
          nodeId,
          name,
          role,
          addresses: JSON.stringify(addresses),
          key: Buffer.from(enrollment.signingPublicKey),
          atMs,
          expires: enrollment.certificateExpiresAtMs,
        });
      const { certificateSerial } = enrollment;
      this.#audit(atMs, 'node-enrolled', nodeId, { name, role, addresses, certificateSerial, again: known !== null });
      return this.#get(nodeId);
    });
  }

  change(nodeId: string, change: NodeChange, atMs: number): Promise<NodeRecord> {
    return this.#change(() => {
      const known = this.#getActive(nodeId);
      const { name = known.name, addresses = known.addresses } = change;
      this.#database
        .prepare('UPDATE nodes SET name = ?, addresses = ? WHERE node_id = ?')
        .run(name, JSON.stringify(addresses), nodeId);
      this.#audit(atMs, 'node-changed', nodeId, { ...change });
      return this.#get(nodeId);
    });
  }

  renewCertificate(nodeId: string, renewal: CertificateRenewal, atMs: number): Promise<NodeRecord> {
    return this.#change(() => {
      const { name } = this.#getActive(nodeId);
      const { certificateExpiresAtMs, certificateSerial } = renewal;
      this.#database
        .prepare('UPDATE nodes SET certificate_expires_at_ms = ? WHERE node_id = ?')
        .run(certificateExpiresAtMs, nodeId);
      this.#audit(atMs, 'certificate-renewed', nodeId, { name, certificateSerial });
      return this.#get(nodeId);
    });
  }

  note(nodeId: string, order: NodeOrder, atMs: number): Promise<void> {
    return this.#change(() => {
      const { name } = this.#getActive(nodeId);
      this.#audit(atMs, order, nodeId, { name });
    });
  }

  revoke(nodeId: string, atMs: number): Promise<NodeRecord> {
    return this.#change(() => {
      const known = this.#get(nodeId);
      if (known.revokedAtMs !== null) return known;
      this.#database.prepare('UPDATE nodes SET revoked_at_ms = ? WHERE node_id = ?').run(atMs, nodeId);
      this.#audit(atMs, 'node-revoked', nodeId, { name: known.name, role: known.role });
      return this.#get(nodeId);
    });
  }

  list(): Promise<NodeRecord[]> {
    return this.#run(() => {
      const rows = this.#database.prepare('SELECT * FROM nodes ORDER BY position').all() as NodeRow[];
      return rows.map(recordOf);
    });
  }

  audit(): Promise<AuditEntry[]> {
    return this.#run(() => {
      const rows = this.#database.prepare('SELECT * FROM audit ORDER BY sequence').all() as {
        sequence: number;
        at_ms: number;
        action: AuditAction;
        node_id: string;
        details: string;
      }[];
      return rows.map(({ sequence, at_ms, action, node_id, details }) => ({
        sequence,
        atMs: at_ms,
        action,
        nodeId: node_id,
        details: JSON.parse(details) as Record<string, unknown>,
      }));
    });
  }

  close(): Promise<void> {
    return this.#run(() => {
      this.#database.close();
    });
  }

  #owner(): RegistryOwner | null {
    const row = this.#database.prepare('SELECT coordinator_id, authority_sha256 FROM owner').get() as
      { coordinator_id: string; authority_sha256: string } | undefined;
    return row === undefined ? null : { coordinatorId: row.coordinator_id, authoritySha256: row.authority_sha256 };
  }

  #find(nodeId: string): NodeRecord | null {
    const row = this.#database.prepare('SELECT * FROM nodes WHERE node_id = ?').get(nodeId) as NodeRow | undefined;
    return row === undefined ? null : recordOf(row);
  }

  #get(nodeId: string): NodeRecord {
    const record = this.#find(nodeId);
    if (record === null) throw new MuserError('NOT_FOUND', `there is no node ${nodeId}`);
    return record;
  }

  #getActive(nodeId: string): NodeRecord {
    const record = this.#get(nodeId);
    if (record.revokedAtMs !== null) throw new MuserError('NOT_FOUND', `the node ${nodeId} was revoked`);
    return record;
  }

  #audit(atMs: number, action: AuditAction, nodeId: string, details: Record<string, unknown>): void {
    this.#database
      .prepare('INSERT INTO audit (at_ms, action, node_id, details) VALUES (?, ?, ?, ?)')
      .run(atMs, action, nodeId, JSON.stringify(details));
  }

  /** All or nothing, also when the process is killed in between. */
  #change<T>(work: () => T): Promise<T> {
    return this.#run(() => this.#database.transaction(work).immediate());
  }

  async #run<T>(work: () => T): Promise<T> {
    try {
      // In a microtask, so that errors are rejections as from any other store.
      return await Promise.resolve().then(work);
    } catch (error) {
      throw storageError(error, this.#database.name);
    }
  }
}

function refuseOtherNode(known: NodeRecord, role: NodeRole): void {
  if (known.revokedAtMs !== null) {
    throw new MuserError('ENROLL_REFUSED', `the node ${known.nodeId} was revoked; make a new identity on it`);
  }
  if (known.role !== role) {
    throw new MuserError('ENROLL_REFUSED', `the node ${known.nodeId} is enrolled as a ${known.role}, not as a ${role}`);
  }
}

/** Before anything is written: SQLite would go on working beside a damaged page. */
function refuseDamaged(database: Database.Database, file: string): void {
  const result = database.pragma('quick_check(1)', { simple: true });
  if (result !== 'ok') throw damaged(file, String(result));
}

function migrate(database: Database.Database, file: string): void {
  const version = database.pragma('user_version', { simple: true }) as number;
  if (version > MIGRATIONS.length) {
    throw new MuserError(
      'CONFIG_INVALID',
      `${file} has schema version ${version}, this program knows up to ${MIGRATIONS.length}: start a later version`,
    );
  }
  for (const [index, step] of MIGRATIONS.entries()) {
    if (index < version) continue;
    database
      .transaction(() => {
        database.exec(step);
        database.pragma(`user_version = ${index + 1}`);
      })
      .immediate();
  }
}

function recordOf(row: NodeRow): NodeRecord {
  return {
    nodeId: row.node_id,
    name: row.name,
    role: row.role,
    addresses: JSON.parse(row.addresses) as string[],
    signingPublicKey: new Uint8Array(row.signing_public_key),
    enrolledAtMs: row.enrolled_at_ms,
    certificateExpiresAtMs: row.certificate_expires_at_ms,
    revokedAtMs: row.revoked_at_ms,
  };
}

function storageError(error: unknown, file: string): MuserError {
  if (error instanceof MuserError) return error;
  const code = (error as { code?: unknown }).code;
  const reason = typeof code === 'string' ? code : 'unknown reason';
  if (reason.startsWith('SQLITE_CORRUPT') || reason === 'SQLITE_NOTADB') return damaged(file, reason, error);
  return new MuserError(
    'UNAVAILABLE',
    `the registry ${file} cannot be used (${reason}): check the disk and the folder`,
    {
      cause: error,
    },
  );
}

function damaged(file: string, reason: string, cause?: unknown): MuserError {
  const message =
    `the registry ${file} is damaged (${reason}) and was left as it is: ` +
    'restore it from a backup, or move it away to start without nodes';
  return new MuserError('CONFIG_INVALID', message, { cause });
}
