import 'reflect-metadata';
import { createHash, randomBytes, webcrypto } from 'node:crypto';
import { join } from 'node:path';

import { MuserError } from '@muser/protocol';
import { ensurePrivateFolder, readPrivateFile, writeFileAtomic } from '@muser/service-kit';
import type { Role } from '@muser/transport';
import {
  AuthorityKeyIdentifierExtension,
  BasicConstraintsExtension,
  ExtendedKeyUsage,
  ExtendedKeyUsageExtension,
  KeyUsageFlags,
  KeyUsagesExtension,
  PemConverter,
  SubjectAlternativeNameExtension,
  SubjectKeyIdentifierExtension,
  X509Certificate,
  X509CertificateGenerator,
  type PublicKey,
} from '@peculiar/x509';
import { z } from 'zod';

const KEY_ALGORITHM = { name: 'ECDSA', namedCurve: 'P-256' };
const SIGNING_ALGORITHM = { name: 'ECDSA', hash: 'SHA-256' };

const MINUTE_MS = 60_000;
const DAY_MS = 24 * 60 * MINUTE_MS;
export const CERTIFICATE_LIFETIME_MS = 30 * DAY_MS;
/** Certificates begin this long ago, for nodes whose clock is behind. */
const CERTIFICATE_BACKDATE_MS = 10 * MINUTE_MS;
const AUTHORITY_LIFETIME_MS = 3_650 * DAY_MS;
const AUTHORITY_BACKDATE_MS = DAY_MS;
const SERIAL_BYTES = 16;

/** Key and certificate in one file, so that there is never one without the other. */
const FILE = 'authority.json';
const fileSchema = z.strictObject({ version: z.literal(1), keyPem: z.string(), certificatePem: z.string() });

export interface IssuedCertificate {
  certificatePem: string;
  der: Uint8Array;
  /** Hexadecimal. */
  serial: string;
  expiresAtMs: number;
}

/** The certificate authority of one coordinator: the only root that its nodes trust. */
export class Authority {
  readonly certificatePem: string;
  /** Hexadecimal SHA-256 of the CA certificate. */
  readonly sha256: string;
  readonly #certificate: X509Certificate;
  readonly #key: webcrypto.CryptoKey;

  private constructor(certificate: X509Certificate, key: webcrypto.CryptoKey) {
    this.#certificate = certificate;
    this.#key = key;
    this.certificatePem = certificate.toString('pem');
    this.sha256 = createHash('sha256').update(new Uint8Array(certificate.rawData)).digest('hex');
  }

  /**
   * The authority in `folder`, or null when there is none yet.
   *
   * @throws MuserError CONFIG_INVALID when its file is damaged or others can read it
   */
  static async load(folder: string): Promise<Authority | null> {
    const path = join(folder, FILE);
    const text = await readPrivateFile(path);
    if (text === null) return null;
    try {
      const { keyPem, certificatePem } = fileSchema.parse(JSON.parse(text));
      const certificate = new X509Certificate(certificatePem);
      const key = await importKey(keyPem);
      await requirePair(certificate, key);
      return new Authority(certificate, key);
    } catch {
      // Without the cause: a parser's message may quote the key.
      throw new MuserError('CONFIG_INVALID', `${path} is damaged: restore it from a backup`);
    }
  }

  /** Makes a new authority in `folder` (file mode 0600). */
  static async create(folder: string, nowMs: number): Promise<Authority> {
    const keys = await webcrypto.subtle.generateKey(KEY_ALGORITHM, true, ['sign', 'verify']);
    const certificate = await X509CertificateGenerator.createSelfSigned(
      {
        serialNumber: newSerial(),
        name: `CN=muser CA ${randomBytes(4).toString('hex')}`,
        notBefore: new Date(nowMs - AUTHORITY_BACKDATE_MS),
        notAfter: new Date(nowMs + AUTHORITY_LIFETIME_MS),
        keys,
        signingAlgorithm: SIGNING_ALGORITHM,
        extensions: [
          // Path length 0: it signs nodes, never another authority.
          new BasicConstraintsExtension(true, 0, true),
          new KeyUsagesExtension(KeyUsageFlags.keyCertSign | KeyUsageFlags.cRLSign, true),
          await SubjectKeyIdentifierExtension.create(keys.publicKey, false, webcrypto),
        ],
      },
      webcrypto,
    );
    const keyPem = PemConverter.encode(await webcrypto.subtle.exportKey('pkcs8', keys.privateKey), 'PRIVATE KEY');
    await ensurePrivateFolder(folder);
    const content = { version: 1, keyPem, certificatePem: certificate.toString('pem') } satisfies z.infer<
      typeof fileSchema
    >;
    await writeFileAtomic(join(folder, FILE), `${JSON.stringify(content)}\n`);
    return new Authority(certificate, keys.privateKey);
  }

  /** A certificate for 30 days, as client and as server, for the node that has this TLS key. */
  async issue(node: { role: Role; nodeId: string; tlsKey: PublicKey; nowMs: number }): Promise<IssuedCertificate> {
    const serial = newSerial();
    const notAfter = new Date(node.nowMs + CERTIFICATE_LIFETIME_MS);
    const certificate = await X509CertificateGenerator.create(
      {
        serialNumber: serial,
        subject: `CN=${node.nodeId}`,
        issuer: this.#certificate.subject,
        notBefore: new Date(node.nowMs - CERTIFICATE_BACKDATE_MS),
        notAfter,
        publicKey: node.tlsKey,
        signingKey: this.#key,
        signingAlgorithm: SIGNING_ALGORITHM,
        extensions: [
          new BasicConstraintsExtension(false, undefined, true),
          new KeyUsagesExtension(KeyUsageFlags.digitalSignature, true),
          new ExtendedKeyUsageExtension([ExtendedKeyUsage.serverAuth, ExtendedKeyUsage.clientAuth], true),
          new SubjectAlternativeNameExtension([{ type: 'url', value: `muser:${node.role}:${node.nodeId}` }], true),
          await SubjectKeyIdentifierExtension.create(node.tlsKey, false, webcrypto),
          await AuthorityKeyIdentifierExtension.create(this.#certificate.publicKey, false, webcrypto),
        ],
      },
      webcrypto,
    );
    const der = new Uint8Array(certificate.rawData);
    return { certificatePem: certificate.toString('pem'), der, serial, expiresAtMs: notAfter.getTime() };
  }
}

async function importKey(pem: string): Promise<webcrypto.CryptoKey> {
  return await webcrypto.subtle.importKey('pkcs8', PemConverter.decodeFirst(pem), KEY_ALGORITHM, false, ['sign']);
}

async function requirePair(certificate: X509Certificate, key: webcrypto.CryptoKey): Promise<void> {
  const probe = randomBytes(32);
  const signature = await webcrypto.subtle.sign(SIGNING_ALGORITHM, key, probe);
  const exported: unknown = await certificate.publicKey.export(KEY_ALGORITHM, ['verify'], webcrypto);
  const publicKey = exported as webcrypto.CryptoKey;
  if (!(await webcrypto.subtle.verify(SIGNING_ALGORITHM, publicKey, signature, probe))) {
    throw new Error('key and certificate are not a pair');
  }
}

/** Positive and never zero, as certificates demand. */
function newSerial(): string {
  const bytes = randomBytes(SERIAL_BYTES);
  bytes[0] = ((bytes[0] ?? 0) & 0x7f) | 0x40;
  return bytes.toString('hex');
}
