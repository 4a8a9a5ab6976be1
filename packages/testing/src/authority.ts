import 'reflect-metadata';
import { randomBytes, webcrypto } from 'node:crypto';
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import {
  BasicConstraintsExtension,
  ExtendedKeyUsage,
  ExtendedKeyUsageExtension,
  KeyUsageFlags,
  KeyUsagesExtension,
  Pkcs10CertificateRequest,
  PemConverter,
  SubjectAlternativeNameExtension,
  X509CertificateGenerator,
  PublicKey,
} from '@peculiar/x509';
import { generateSigningKey, nodeIdOf, signingKeyFromSeed, type SigningKey } from '@muser/protocol';

const KEY = { name: 'ECDSA', namedCurve: 'P-256' };
const SIGNATURE = { name: 'ECDSA', hash: 'SHA-256' };
const MINUTE_MS = 60_000;

export type TestRole = 'coordinator' | 'decoder' | 'producer';

/** The shape of @muser/transport's Identity, plus the seed, so that it can be written to a folder or handed to a child process. */
export interface TestIdentity {
  nodeId: string;
  role: TestRole;
  tlsKeyPem: string;
  tlsCertificatePem: string;
  caPem: string;
  signingKey: SigningKey;
  signingSeed: Uint8Array;
  coordinatorPublicKey: Uint8Array;
}

/** What an enrollment request and its answer look like (as in @muser/transport). */
export interface TestIdentityRequest {
  role: TestRole;
  signingPublicKey: string;
  csrPem: string;
}

export interface TestIdentityBundle {
  nodeId: string;
  certificatePem: string;
  caPem: string;
  coordinatorPublicKey: string;
}

export interface Validity {
  notBefore?: Date;
  notAfter?: Date;
}

interface Subject extends Validity {
  publicKey: PublicKey;
  nodeId: string;
  /** The whole SAN URI; a wrong one makes a certificate that no peer accepts. */
  uri: string;
}

/** A CA like a coordinator's, with keys made for this run. */
export class TestAuthority {
  readonly caPem: string;
  /** Signs tickets. */
  readonly coordinatorKey: SigningKey;
  readonly #caKeys: webcrypto.CryptoKeyPair;

  static async create(): Promise<TestAuthority> {
    const keys = await webcrypto.subtle.generateKey(KEY, true, ['sign', 'verify']);
    const certificate = await X509CertificateGenerator.createSelfSigned(
      {
        name: 'CN=muser test CA',
        serialNumber: serialNumber(),
        keys,
        signingAlgorithm: SIGNATURE,
        ...validity({}),
        extensions: [
          new BasicConstraintsExtension(true, 0, true),
          new KeyUsagesExtension(KeyUsageFlags.keyCertSign | KeyUsageFlags.cRLSign, true),
        ],
      },
      webcrypto,
    );
    return new TestAuthority(certificate.toString('pem'), keys);
  }

  private constructor(caPem: string, caKeys: webcrypto.CryptoKeyPair) {
    this.caPem = caPem;
    this.#caKeys = caKeys;
    this.coordinatorKey = signingKeyFromSeed(generateSigningKey().seed);
  }

  /** Answers an enrollment request without checking it. */
  async issue(request: TestIdentityRequest, period: Validity = {}): Promise<TestIdentityBundle> {
    const nodeId = nodeIdOf(Buffer.from(request.signingPublicKey, 'base64'));
    const { publicKey } = new Pkcs10CertificateRequest(request.csrPem);
    return {
      nodeId,
      certificatePem: await this.#sign({ publicKey, nodeId, uri: `muser:${request.role}:${nodeId}`, ...period }),
      caPem: this.caPem,
      coordinatorPublicKey: Buffer.from(this.coordinatorKey.publicKey).toString('base64'),
    };
  }

  /** A node with new keys, in memory. `uri` replaces the certificate's SAN URI. */
  async identity(role: TestRole, options: Validity & { uri?: string } = {}): Promise<TestIdentity> {
    const tls = await webcrypto.subtle.generateKey(KEY, true, ['sign', 'verify']);
    const signingSeed = generateSigningKey().seed;
    const signingKey = signingKeyFromSeed(signingSeed);
    const nodeId = nodeIdOf(signingKey.publicKey);
    const { uri = `muser:${role}:${nodeId}`, ...period } = options;
    return {
      nodeId,
      role,
      tlsKeyPem: PemConverter.encode(await webcrypto.subtle.exportKey('pkcs8', tls.privateKey), 'PRIVATE KEY'),
      tlsCertificatePem: await this.#sign({ publicKey: await PublicKey.create(tls.publicKey), nodeId, uri, ...period }),
      caPem: this.caPem,
      signingKey,
      signingSeed,
      coordinatorPublicKey: this.coordinatorKey.publicKey,
    };
  }

  async #sign({ publicKey, nodeId, uri, ...period }: Subject): Promise<string> {
    const certificate = await X509CertificateGenerator.create(
      {
        subject: `CN=${nodeId}`,
        issuer: 'CN=muser test CA',
        serialNumber: serialNumber(),
        publicKey,
        signingKey: this.#caKeys.privateKey,
        signingAlgorithm: SIGNATURE,
        ...validity(period),
        extensions: [
          new BasicConstraintsExtension(false, undefined, true),
          new KeyUsagesExtension(KeyUsageFlags.digitalSignature, true),
          new ExtendedKeyUsageExtension([ExtendedKeyUsage.serverAuth, ExtendedKeyUsage.clientAuth]),
          new SubjectAlternativeNameExtension([{ type: 'url', value: uri }]),
        ],
      },
      webcrypto,
    );
    return certificate.toString('pem');
  }
}

/** Writes an identity as an enrolled node has it on its disk, for processes that are started with a folder. */
export async function writeIdentityFolder(dir: string, identity: TestIdentity): Promise<void> {
  await mkdir(dir, { recursive: true, mode: 0o700 });
  const keys = {
    role: identity.role,
    tlsKeyPem: identity.tlsKeyPem,
    signingSeed: Buffer.from(identity.signingSeed).toString('base64'),
  };
  const bundle: TestIdentityBundle = {
    nodeId: identity.nodeId,
    certificatePem: identity.tlsCertificatePem,
    caPem: identity.caPem,
    coordinatorPublicKey: Buffer.from(identity.coordinatorPublicKey).toString('base64'),
  };
  await writeFile(join(dir, 'keys.json'), JSON.stringify(keys), { mode: 0o600 });
  await writeFile(join(dir, 'bundle.json'), JSON.stringify(bundle), { mode: 0o600 });
}

function validity({ notBefore, notAfter }: Validity): Required<Validity> {
  const now = Date.now();
  return {
    notBefore: notBefore ?? new Date(now - 10 * MINUTE_MS),
    notAfter: notAfter ?? new Date(now + 60 * MINUTE_MS),
  };
}

/** Positive and never zero, as RFC 5280 wants it. */
function serialNumber(): string {
  return `01${randomBytes(15).toString('hex')}`;
}
