/**
 * The registry's schema, one step for each version; `PRAGMA user_version` counts the steps that are done. A step that
 * has been released is never changed again.
 */
export const MIGRATIONS: readonly string[] = [
  `
  CREATE TABLE owner (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    coordinator_id TEXT NOT NULL,
    authority_sha256 TEXT NOT NULL
  ) STRICT;

  CREATE TABLE nodes (
    position INTEGER PRIMARY KEY,
    node_id TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    role TEXT NOT NULL CHECK (role IN ('producer', 'decoder')),
    addresses TEXT NOT NULL CHECK (json_type(addresses) = 'array'),
    signing_public_key BLOB NOT NULL UNIQUE CHECK (length(signing_public_key) = 32),
    enrolled_at_ms INTEGER NOT NULL,
    certificate_expires_at_ms INTEGER NOT NULL,
    revoked_at_ms INTEGER
  ) STRICT;

  CREATE TABLE audit (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms INTEGER NOT NULL,
    action TEXT NOT NULL,
    node_id TEXT NOT NULL,
    details TEXT NOT NULL CHECK (json_type(details) = 'object')
  ) STRICT;

  CREATE TRIGGER audit_is_never_changed BEFORE UPDATE ON audit
  BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;

  CREATE TRIGGER audit_is_never_shortened BEFORE DELETE ON audit
  BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;

  CREATE TRIGGER revoked_is_for_good BEFORE UPDATE OF revoked_at_ms ON nodes WHEN OLD.revoked_at_ms IS NOT NULL
  BEGIN SELECT RAISE(ABORT, 'a revoked node stays revoked'); END;
  `,
];
