import type { SigningKey } from '@muser/protocol';

/** What a node is enrolled as. One process has exactly one role. */
export type Role = 'coordinator' | 'decoder' | 'producer';

export const ROLES: readonly Role[] = ['coordinator', 'decoder', 'producer'];

export function isRole(value: unknown): value is Role {
  return ROLES.some((role) => role === value);
}

/** Who is at the other end of a connection, as its verified certificate says. */
export interface PeerIdentity {
  role: Role;
  nodeId: string;
  /** After this instant the certificate is worth nothing, also on a connection that is open already. */
  notAfter: Date;
  /** Of its certificate: hexadecimal, upper case. */
  serial: string;
}

/** What a process needs to listen, to dial and to sign. Private keys never leave the node. */
export interface Identity {
  nodeId: string;
  role: Role;
  /** PKCS #8, ECDSA P-256. */
  tlsKeyPem: string;
  tlsCertificatePem: string;
  /** The coordinator's CA: the only root that is trusted. */
  caPem: string;
  /** Ed25519: signs transfers (producers), tickets (the coordinator), enrollment requests (all). */
  signingKey: SigningKey;
  /** 32 bytes: verifies tickets. */
  coordinatorPublicKey: Uint8Array;
}

/** What a node sends to the coordinator to be enrolled; nothing in it is secret. */
export interface IdentityRequest {
  role: Role;
  /** Base64 of the 32-byte Ed25519 public key; the node id is its hash. */
  signingPublicKey: string;
  csrPem: string;
  /** Base64 of the signature by that key over ('muser/1/csr', the CSR's DER): both keys belong to one node. */
  proof: string;
}

/** The coordinator's answer; nothing in it is secret. */
export interface IdentityBundle {
  nodeId: string;
  certificatePem: string;
  caPem: string;
  /** Base64 of 32 bytes. */
  coordinatorPublicKey: string;
}
