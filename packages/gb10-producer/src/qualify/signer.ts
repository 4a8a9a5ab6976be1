import { join } from 'node:path';

import { generateSigningKey, MuserError, signingKeyFromSeed } from '@muser/protocol';
import { createFileOnce, readPrivateFile } from '@muser/service-kit';
import { loadIdentity } from '@muser/transport';

import { identityDir } from '../producer.js';
import type { RecordSigner } from './record.js';

const KEY_FILE = 'qualification-key.json';
const SEED_BYTES = 32;

/**
 * The key that signs records: the node's identity where there is one, else a key of this state folder, made at its first
 * use (mode 0600).
 * @throws MuserError, or ServiceError, CONFIG_INVALID when others can read the keys, or they are damaged; MuserError
 * CERTIFICATE_INVALID, CLOCK_SKEW when the identity is no longer valid
 */
export async function recordSigner(stateDir: string): Promise<RecordSigner> {
  try {
    const { signingKey } = await loadIdentity(identityDir(stateDir));
    return { kind: 'node', key: signingKey };
  } catch (error) {
    if (!(error instanceof MuserError) || error.code !== 'NOT_FOUND') throw error;
  }
  const path = join(stateDir, KEY_FILE);
  const content = (await readPrivateFile(path)) ?? (await makeKey(path));
  return { kind: 'local', key: signingKeyFromSeed(parseSeed(path, content)) };
}

/** Another first run may make it at the same time: both sign with the one that is there then. */
async function makeKey(path: string): Promise<string> {
  const { seed } = generateSigningKey();
  await createFileOnce(path, `${JSON.stringify({ seed: Buffer.from(seed).toString('base64') })}\n`);
  const content = await readPrivateFile(path);
  if (content === null) throw new MuserError('UNAVAILABLE', `${path} was removed meanwhile: run this again`);
  return content;
}

function parseSeed(path: string, content: string): Buffer {
  try {
    const { seed } = JSON.parse(content) as { seed?: unknown };
    const bytes = typeof seed === 'string' ? Buffer.from(seed, 'base64') : Buffer.alloc(0);
    if (bytes.length === SEED_BYTES) return bytes;
  } catch {
    // Reported below without the parser's message: it quotes the text, which is the key.
  }
  throw new MuserError('CONFIG_INVALID', `${path} is damaged; remove it, and a new key is made`);
}
