/** What a node can be enrolled as. */
export type NodeRole = 'producer' | 'decoder';

/** A node as the registry knows it. A node is its key: name and addresses are only about it. */
export interface NodeRecord {
  readonly nodeId: string;
  readonly name: string;
  readonly role: NodeRole;
  /** "host:port", in the order in which they are tried. */
  readonly addresses: readonly string[];
  /** Ed25519, 32 bytes. */
  readonly signingPublicKey: Uint8Array;
  readonly enrolledAtMs: number;
  readonly certificateExpiresAtMs: number;
  /** Null while the node may take part. A revoked node stays listed and can never come back under its key. */
  readonly revokedAtMs: number | null;
}

export interface Enrollment {
  nodeId: string;
  name: string;
  role: NodeRole;
  addresses: readonly string[];
  signingPublicKey: Uint8Array;
  certificateExpiresAtMs: number;
  /** Hexadecimal; for the audit log. */
  certificateSerial: string;
}

/** Of a node's newest certificate. */
export interface CertificateRenewal {
  certificateExpiresAtMs: number;
  /** Hexadecimal; for the audit log. */
  certificateSerial: string;
}

export interface NodeChange {
  name?: string;
  addresses?: readonly string[];
}

/** Who issued the certificates and tickets of this registry's nodes. */
export interface RegistryOwner {
  coordinatorId: string;
  /** Hexadecimal SHA-256 of the CA certificate. */
  authoritySha256: string;
}

/** What a node was told to do. The node keeps it, the registry only that it was told. */
export type NodeOrder = 'node-paused' | 'node-resumed';

export type AuditAction =
  'registry-bound' | 'node-enrolled' | 'node-changed' | 'certificate-renewed' | 'node-revoked' | NodeOrder;

export interface AuditEntry {
  /** 1, 2, 3 and so on, without gaps. */
  sequence: number;
  atMs: number;
  action: AuditAction;
  nodeId: string;
  details: Readonly<Record<string, unknown>>;
}

/**
 * Where nodes are remembered. Every change and its audit entry are stored together, and are on disk when the promise
 * resolves. Errors are MuserErrors: NOT_FOUND (no such node, or revoked), ENROLL_REFUSED, UNAVAILABLE (the storage
 * refuses to work). test/registry/compliance.ts holds what every implementation must do.
 */
export interface RegistryStore {
  /** The owner this registry was bound to; null for a new registry. */
  owner(): Promise<RegistryOwner | null>;
  /** Binds a new registry to its owner, for good. @throws MuserError CONFIG_INVALID when it has another one */
  bind(owner: RegistryOwner, atMs: number): Promise<void>;
  /**
   * Adds a node, or renews the one with this key: name and certificate are replaced, addresses unless the new list is
   * empty. @throws MuserError ENROLL_REFUSED for a revoked key, or one enrolled in another role
   */
  enroll(enrollment: Enrollment, atMs: number): Promise<NodeRecord>;
  change(nodeId: string, change: NodeChange, atMs: number): Promise<NodeRecord>;
  /** The node has a newer certificate. */
  renewCertificate(nodeId: string, renewal: CertificateRenewal, atMs: number): Promise<NodeRecord>;
  /** An audit entry for an order, before it is given; of no other effect. */
  note(nodeId: string, order: NodeOrder, atMs: number): Promise<void>;
  /** Revoking again changes nothing. */
  revoke(nodeId: string, atMs: number): Promise<NodeRecord>;
  /** In the order of enrollment, the revoked ones too. */
  list(): Promise<NodeRecord[]>;
  /** Oldest first. */
  audit(): Promise<AuditEntry[]>;
  close(): Promise<void>;
}
