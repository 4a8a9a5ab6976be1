import { createPrivateKey, X509Certificate } from 'node:crypto';
import { join } from 'node:path';
import {
  generateSigningKey,
  MuserError,
  nodeIdOf,
  SEED_BYTES,
  signingKeyFromSeed,
  type SigningKey,
} from '@muser/protocol';
import { createFileOnce, ensurePrivateFolder, readPrivateFile, writeFileAtomic } from '@muser/service-kit';
import { asOurs } from './as-ours.js';
import { keyStoreOf } from './key-stores/choose.js';
import { KEY_STORE_KINDS, parseSeed, type KeyStoreKind } from './key-stores/key-store.js';
import { peerOf } from './peer.js';
import { generateTlsKeyPem, makeRequest, toPem } from './request.js';
import { isRole, type Identity, type IdentityBundle, type IdentityRequest, type Role } from './types.js';

/** The first TLS key, and where the identity key is. */
const KEYS_FILE = 'keys.json';
/**
 * What the coordinator gave, in one file so that certificate and CA always fit each other. A certificate that was renewed
 * belongs to a newer TLS key than that of the keys' file, and brings it along.
 */
const BUNDLE_FILE = 'bundle.json';

interface KeysFile {
  role: Role;
  tlsKeyPem: string;
  keyStore: KeyStoreKind;
  /** Base64 of 32 bytes, in folders that were made before there was a choice of stores; then it counts. */
  signingSeed?: string;
}

/** What a certificate is for and what signs with it. */
interface NodeKeys {
  role: Role;
  tlsKeyPem: string;
  signingKey: SigningKey;
}

interface StoredBundle extends IdentityBundle {
  tlsKeyPem?: string;
}

/**
 * Makes the node's keys in `dir` (folder 0700, files 0600), or reuses those that are there, and returns the request that the
 * coordinator needs. Asking twice gives the same node.
 *
 * @param keyStore where a new identity key is kept; left out: the systemd credential of this service, else a file
 * @throws MuserError CONFIG_INVALID when the folder holds another role's keys, or others can read them; UNAVAILABLE when it
 *   cannot be made
 */
export async function createIdentity(dir: string, role: Role, keyStore?: KeyStoreKind): Promise<IdentityRequest> {
  await asOurs(ensurePrivateFolder(dir));
  let file = await readKeysFile(dir);
  if (file === null) {
    const made = { role, tlsKeyPem: await generateTlsKeyPem(), keyStore: await newKeyStore(dir, keyStore) };
    await createFileOnce(join(dir, KEYS_FILE), `${JSON.stringify(made satisfies KeysFile)}\n`);
    // Another process may have been first: its keys count.
    file = (await readKeysFile(dir)) ?? made;
  }
  if (file.role !== role) {
    throw new MuserError('CONFIG_INVALID', `${dir} holds the keys of a ${file.role}; use another folder for a ${role}`);
  }
  const { tlsKeyPem, signingKey } = await nodeKeys(dir, file);
  return makeRequest(role, tlsKeyPem, signingKey);
}

/** Makes the identity key in a store, unless it has one. @returns which store that is */
async function newKeyStore(dir: string, wanted: KeyStoreKind | undefined): Promise<KeyStoreKind> {
  const hasCredential = (await keyStoreOf('credential', dir, process.env).read()) !== null;
  const kind = wanted ?? (hasCredential ? 'credential' : 'file');
  const store = keyStoreOf(kind, dir, process.env);
  if ((await store.read()) === null) await store.create(generateSigningKey().seed);
  return kind;
}

/** Where the identity key of the node in `dir` is kept, for people. @throws MuserError NOT_FOUND, CONFIG_INVALID */
export async function identityKeyPlace(dir: string): Promise<string> {
  const { keyStore, signingSeed } = await requireKeysFile(dir);
  return signingSeed === undefined ? keyStoreOf(keyStore, dir, process.env).place : join(dir, KEYS_FILE);
}

/**
 * Checks that the coordinator's answer belongs to the keys in `dir`, then stores it.
 *
 * @throws MuserError NOT_FOUND without keys; CERTIFICATE_INVALID or CLOCK_SKEW when the bundle does not fit (nothing is
 *   stored then)
 */
export async function installIdentity(dir: string, bundle: IdentityBundle): Promise<Identity> {
  const checked = checkBundle(bundle);
  const identity = assemble(await nodeKeys(dir, await requireKeysFile(dir)), checked, Date.now());
  await writeFileAtomic(join(dir, BUNDLE_FILE), `${JSON.stringify(checked)}\n`);
  return identity;
}

/**
 * Puts a renewed certificate with its TLS key in place of those in `dir`, both in one step.
 *
 * @param renewal the new TLS key, and its certificate (DER)
 * @throws MuserError CERTIFICATE_INVALID or CLOCK_SKEW when the certificate does not fit the node, its CA or the key
 *   (nothing is stored then); UNAVAILABLE when it cannot be written
 */
export async function installRenewal(
  dir: string,
  { nodeId, role, signingKey, caPem, coordinatorPublicKey }: Identity,
  { tlsKeyPem, certificate }: { tlsKeyPem: string; certificate: Uint8Array },
): Promise<Identity> {
  const bundle: StoredBundle = {
    nodeId,
    certificatePem: toPem('CERTIFICATE', certificate),
    caPem,
    coordinatorPublicKey: Buffer.from(coordinatorPublicKey).toString('base64'),
    tlsKeyPem,
  };
  const identity = assemble({ role, tlsKeyPem, signingKey }, bundle, Date.now());
  await writeFileAtomic(join(dir, BUNDLE_FILE), `${JSON.stringify(bundle)}\n`).catch((cause: unknown) => {
    throw new MuserError('UNAVAILABLE', `${dir}/${BUNDLE_FILE} cannot be written: check the disk`, { cause });
  });
  return identity;
}

/**
 * Reads an installed identity and checks it as a peer would.
 *
 * @throws MuserError NOT_FOUND (no keys, or not enrolled yet), CONFIG_INVALID (file modes, damaged files),
 *   CERTIFICATE_INVALID (expired, other keys, other CA), CLOCK_SKEW (not valid yet)
 */
export async function loadIdentity(dir: string): Promise<Identity> {
  const keys = await requireKeysFile(dir);
  const text = await asOurs(readPrivateFile(join(dir, BUNDLE_FILE)));
  if (text === null) {
    throw new MuserError('NOT_FOUND', `the node in ${dir} has keys but no certificate; enroll it at the coordinator`);
  }
  const stored = parseObject(dir, BUNDLE_FILE, text);
  const { tlsKeyPem = keys.tlsKeyPem } = stored;
  if (typeof tlsKeyPem !== 'string') throw damaged(dir, BUNDLE_FILE);
  return assemble({ ...(await nodeKeys(dir, keys)), tlsKeyPem }, checkBundle(stored), Date.now());
}

async function nodeKeys(dir: string, { role, tlsKeyPem, keyStore, signingSeed }: KeysFile): Promise<NodeKeys> {
  const store = keyStoreOf(keyStore, dir, process.env);
  const seed = signingSeed === undefined ? await store.read() : parseSeed(signingSeed, join(dir, KEYS_FILE));
  if (seed !== null) return { role, tlsKeyPem, signingKey: signingKeyFromSeed(seed) };
  const hint = keyStore === 'credential' ? ': systemd gives it to the service alone, so start that' : '';
  throw new MuserError('CONFIG_INVALID', `the identity key of ${dir} is not in ${store.place}${hint}`);
}

function assemble(keys: NodeKeys, bundle: IdentityBundle, nowMs: number): Identity {
  const { signingKey } = keys;
  const nodeId = nodeIdOf(signingKey.publicKey);
  const certificate = parseCertificate('certificate', bundle.certificatePem);
  checkCertificate(certificate, keys, nodeId);
  if (bundle.nodeId !== nodeId) {
    throw invalid(`the bundle is for node ${bundle.nodeId}, but the keys here are of node ${nodeId}`);
  }
  const authority = parseCertificate('CA certificate', bundle.caPem);
  if (!authority.ca || !certificate.checkIssued(authority) || !certificate.verify(authority.publicKey)) {
    throw invalid('the certificate was not issued by the CA that came with it; enroll the node again');
  }
  checkValidity(certificate, nowMs);
  return {
    nodeId,
    role: keys.role,
    tlsKeyPem: keys.tlsKeyPem,
    tlsCertificatePem: bundle.certificatePem,
    caPem: bundle.caPem,
    signingKey,
    coordinatorPublicKey: new Uint8Array(Buffer.from(bundle.coordinatorPublicKey, 'base64')),
  };
}

function checkCertificate(certificate: X509Certificate, keys: NodeKeys, nodeId: string): void {
  const named = peerOf(certificate);
  if (named.nodeId !== nodeId || named.role !== keys.role) {
    throw invalid(
      `the certificate is for ${named.role} ${named.nodeId}, but the keys here are of ${keys.role} ${nodeId}`,
    );
  }
  if (!certificate.checkPrivateKey(createPrivateKey(keys.tlsKeyPem))) {
    throw invalid('the certificate belongs to another TLS key; enroll the node again');
  }
}

function checkValidity(certificate: X509Certificate, nowMs: number): void {
  const now = new Date(nowMs).toISOString();
  if (nowMs < Date.parse(certificate.validFrom)) {
    const from = new Date(certificate.validFrom).toISOString();
    throw new MuserError('CLOCK_SKEW', `the certificate is valid from ${from}, but this machine's clock says ${now}`);
  }
  if (nowMs > Date.parse(certificate.validTo)) {
    const until = new Date(certificate.validTo).toISOString();
    throw invalid(`the certificate expired at ${until} (this machine's clock: ${now}); enroll the node again`);
  }
}

function parseCertificate(what: string, pem: string): X509Certificate {
  try {
    return new X509Certificate(pem);
  } catch (cause) {
    throw new MuserError('CERTIFICATE_INVALID', `the ${what} cannot be parsed`, { cause });
  }
}

async function requireKeysFile(dir: string): Promise<KeysFile> {
  const keys = await readKeysFile(dir);
  if (keys === null) throw new MuserError('NOT_FOUND', `there are no keys in ${dir}; create the identity first`);
  return keys;
}

async function readKeysFile(dir: string): Promise<KeysFile | null> {
  const text = await asOurs(readPrivateFile(join(dir, KEYS_FILE)));
  if (text === null) return null;
  const { role, tlsKeyPem, keyStore = 'file', signingSeed } = parseObject(dir, KEYS_FILE, text);
  const kind = KEY_STORE_KINDS.find((known) => known === keyStore);
  if (!isRole(role) || typeof tlsKeyPem !== 'string' || kind === undefined) throw damaged(dir, KEYS_FILE);
  if (signingSeed === undefined) return { role, tlsKeyPem, keyStore: kind };
  if (typeof signingSeed !== 'string' || Buffer.from(signingSeed, 'base64').length !== SEED_BYTES) {
    throw damaged(dir, KEYS_FILE);
  }
  return { role, tlsKeyPem, keyStore: kind, signingSeed };
}

/** Keeps the known fields only. */
function checkBundle(value: object): IdentityBundle {
  const { nodeId, certificatePem, caPem, coordinatorPublicKey } = value as Record<string, unknown>;
  if (
    typeof nodeId !== 'string' ||
    typeof certificatePem !== 'string' ||
    typeof caPem !== 'string' ||
    typeof coordinatorPublicKey !== 'string' ||
    Buffer.from(coordinatorPublicKey, 'base64').length !== 32
  ) {
    throw invalid('the bundle is not one of a coordinator (nodeId, certificatePem, caPem, coordinatorPublicKey)');
  }
  return { nodeId, certificatePem, caPem, coordinatorPublicKey };
}

function parseObject(dir: string, name: string, text: string): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === 'object' && value !== null) return value as Record<string, unknown>;
  } catch {
    // Reported below without the parser's message: it quotes the text, and the text has keys in it.
  }
  throw damaged(dir, name);
}

function damaged(dir: string, name: string): MuserError {
  return new MuserError('CONFIG_INVALID', `${dir}/${name} is damaged; restore it, or remove ${dir} and enroll again`);
}

function invalid(message: string): MuserError {
  return new MuserError('CERTIFICATE_INVALID', message);
}
