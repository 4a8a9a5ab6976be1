import { X509Certificate } from 'node:crypto';
import { MuserError, PROTOCOL_VERSION, type CertificateRequest } from '@muser/protocol';
import { installRenewal, loadIdentity } from './identity.js';
import { generateTlsKeyPem, makeRequest, toCertificateRequest } from './request.js';
import type { Identity, Role } from './types.js';

/**
 * The identity of a process while it runs. Its TLS key and certificate may be replaced meanwhile; node id and identity key
 * stay. Whoever dials or listens takes `current` each time: connections that are open go on with the one they began with.
 */
export class LiveIdentity {
  readonly #dir: string;
  readonly #listeners = new Set<(identity: Identity) => void>();
  #current: Identity;
  /** Of the request that is under way; a newer request replaces it. */
  #pendingKeyPem: string | null = null;

  /** @throws MuserError as loadIdentity, and CONFIG_INVALID when the folder is that of another role */
  static async load(dir: string, role: Role): Promise<LiveIdentity> {
    const identity = await loadIdentity(dir);
    if (identity.role !== role) {
      throw new MuserError('CONFIG_INVALID', `${dir} holds the identity of a ${identity.role}`);
    }
    return new LiveIdentity(dir, identity);
  }

  /** @param identity what was installed in `dir` */
  constructor(dir: string, identity: Identity) {
    this.#dir = dir;
    this.#current = identity;
  }

  get current(): Identity {
    return this.#current;
  }

  /** Of the certificate that new connections present: hexadecimal, upper case. */
  get serial(): string {
    return new X509Certificate(this.#current.tlsCertificatePem).serialNumber;
  }

  /** End of that certificate, Unix milliseconds. */
  get expiresAtMs(): number {
    return Date.parse(new X509Certificate(this.#current.tlsCertificatePem).validTo);
  }

  /** Calls back after each renewal. @returns what ends that */
  onRenewal(listener: (identity: Identity) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Makes a new TLS key, kept in memory until its certificate comes, and what the coordinator needs to issue that. */
  async request(): Promise<CertificateRequest> {
    const { role, signingKey } = this.#current;
    const tlsKeyPem = await generateTlsKeyPem();
    const request = toCertificateRequest(await makeRequest(role, tlsKeyPem, signingKey));
    this.#pendingKeyPem = tlsKeyPem;
    return { protocolVersion: PROTOCOL_VERSION, ...request };
  }

  /**
   * Takes the certificate for the newest request's key: checks it as a peer would, writes it down with the key, then
   * uses it. Nothing changes when it fails.
   *
   * @param certificate DER
   * @throws MuserError CERTIFICATE_INVALID (it does not fit, or nothing was asked for), CLOCK_SKEW, UNAVAILABLE (the disk)
   */
  async install(certificate: Uint8Array): Promise<Identity> {
    const tlsKeyPem = this.#pendingKeyPem;
    if (tlsKeyPem === null) throw new MuserError('CERTIFICATE_INVALID', 'no certificate was asked for');
    const renewed = await installRenewal(this.#dir, this.#current, { tlsKeyPem, certificate });
    if (this.#pendingKeyPem === tlsKeyPem) this.#pendingKeyPem = null;
    this.#current = renewed;
    for (const listener of this.#listeners) listener(renewed);
    return renewed;
  }
}
