import { MAX_PRODUCERS, MuserError, type CertificateRequest } from '@muser/protocol';
import type { Clock, Logger } from '@muser/service-kit';
import { fromCertificateRequest, type IdentityBundle, type IdentityRequest, type Role } from '@muser/transport';

import { verifyRequest } from './ca/enrollment-request.js';
import type { CoordinatorKeys } from './ca/own-identity.js';
import type { NodeDirectory } from './nodes/directory.js';
import type { NodeEntry } from './nodes/node-state.js';
import type { NodeRole } from './registry/store.js';

/** As many decoders as a list of producers may have producers. */
const MAX_NODES_PER_ROLE = MAX_PRODUCERS;

export interface EnrollmentOrder {
  name: string;
  role: NodeRole;
  addresses: readonly string[];
  request: IdentityRequest;
}

export interface RenewedCertificate {
  /** DER. */
  certificate: Uint8Array;
  /** Puts it into the registry as the node's newest. */
  record: () => Promise<void>;
}

/** Takes nodes in: checks what they prove, issues their certificate, registers them. */
export class EnrollmentOffice {
  readonly #directory: NodeDirectory;
  readonly #keys: CoordinatorKeys;
  readonly #clock: Clock;
  readonly #logger: Logger;

  constructor(options: { directory: NodeDirectory; keys: CoordinatorKeys; clock: Clock; logger: Logger }) {
    this.#directory = options.directory;
    this.#keys = options.keys;
    this.#clock = options.clock;
    this.#logger = options.logger;
  }

  /**
   * Enrolling a node again gives it a new certificate and stays the same node.
   *
   * @throws MuserError ENROLL_REFUSED, RESOURCE_EXHAUSTED, UNAVAILABLE
   */
  async enroll(order: EnrollmentOrder): Promise<{ node: NodeEntry; bundle: IdentityBundle }> {
    const { name, role, addresses, request } = order;
    if (request.role !== role) {
      throw new MuserError('ENROLL_REFUSED', `the request was made for a ${request.role}, not for a ${role}`);
    }
    const { nodeId, signingPublicKey, tlsKey } = await verifyRequest(request);
    this.#refuseTooMany(nodeId, role);
    const { authority, identity } = this.#keys;
    const certificate = await authority.issue({ role, nodeId, tlsKey, nowMs: this.#clock.now() });
    const node = await this.#directory.enroll({
      nodeId,
      name,
      role,
      addresses,
      signingPublicKey,
      certificateExpiresAtMs: certificate.expiresAtMs,
      certificateSerial: certificate.serial,
    });
    this.#logger.info({ nodeId, role, serial: certificate.serial }, 'node enrolled');
    const bundle = {
      nodeId,
      certificatePem: certificate.certificatePem,
      caPem: authority.certificatePem,
      coordinatorPublicKey: Buffer.from(identity.signingKey.publicKey).toString('base64'),
    };
    return { node, bundle };
  }

  /**
   * A certificate for a new TLS key of a node that takes part already: an enrolled one, or the coordinator itself.
   *
   * @param nodeId who asks, by its certificate
   * @throws MuserError ENROLL_REFUSED (the request is not signed by this node's identity key), NODE_REVOKED, NOT_FOUND
   */
  async issueAgain(nodeId: string, request: CertificateRequest): Promise<RenewedCertificate> {
    const { authority } = this.#keys;
    const role = this.#roleOf(nodeId);
    const verified = await verifyRequest(fromCertificateRequest(request, role));
    if (verified.nodeId !== nodeId) {
      throw new MuserError('ENROLL_REFUSED', `${nodeId} sent a request of the node ${verified.nodeId}`);
    }
    const { tlsKey } = verified;
    const issued = await authority.issue({ role, nodeId, tlsKey, nowMs: this.#clock.now() });
    this.#logger.info({ nodeId, role, serial: issued.serial }, 'certificate issued again');
    return {
      certificate: issued.der,
      record: async () => {
        await this.#directory.renewCertificate(nodeId, {
          certificateExpiresAtMs: issued.expiresAtMs,
          certificateSerial: issued.serial,
        });
      },
    };
  }

  #roleOf(nodeId: string): Role {
    if (nodeId === this.#keys.identity.nodeId) return 'coordinator';
    const entry = this.#directory.get(nodeId);
    if (entry === undefined) throw new MuserError('NOT_FOUND', `there is no node ${nodeId}`);
    if (entry.state === 'revoked') throw new MuserError('NODE_REVOKED', `the node ${nodeId} was revoked`);
    return entry.record.role;
  }

  #refuseTooMany(nodeId: string, role: NodeRole): void {
    if (this.#directory.get(nodeId) !== undefined) return;
    const present = this.#directory.list().filter(({ record, state }) => record.role === role && state !== 'revoked');
    if (present.length < MAX_NODES_PER_ROLE) return;
    throw new MuserError('RESOURCE_EXHAUSTED', `there are ${present.length} ${role}s already; remove one first`);
  }
}
