import { MAX_PRODUCERS, MuserError } from '@muser/protocol';
import type { Clock, Logger } from '@muser/service-kit';
import type { IdentityBundle, IdentityRequest } from '@muser/transport';

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

  #refuseTooMany(nodeId: string, role: NodeRole): void {
    if (this.#directory.get(nodeId) !== undefined) return;
    const present = this.#directory.list().filter(({ record, state }) => record.role === role && state !== 'revoked');
    if (present.length < MAX_NODES_PER_ROLE) return;
    throw new MuserError('RESOURCE_EXHAUSTED', `there are ${present.length} ${role}s already; remove one first`);
  }
}
