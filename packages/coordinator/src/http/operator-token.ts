import { createHash, randomBytes, timingSafeEqual } from 'node:crypto';

import { MuserError } from '@muser/protocol';
import { readPrivateFile, writeFileAtomic } from '@muser/service-kit';

const TOKEN_BYTES = 32;
const TOKEN = /^[0-9a-f]{64}$/;

/**
 * The operator's token in this file (mode 0600), made at the first start.
 *
 * @throws MuserError or ServiceError CONFIG_INVALID when the file holds something else, or others can read it
 */
export async function openOperatorToken(path: string): Promise<string> {
  const text = await readPrivateFile(path);
  if (text === null) {
    const token = randomBytes(TOKEN_BYTES).toString('hex');
    await writeFileAtomic(path, `${token}\n`);
    return token;
  }
  const token = text.trim();
  if (!TOKEN.test(token)) {
    throw new MuserError(
      'CONFIG_INVALID',
      `${path} does not hold a token: remove it, a new one is made at the next start`,
    );
  }
  return token;
}

/** Compares digests of the same length, so that the time taken says nothing about the token. */
export function isSameToken(one: string, other: string): boolean {
  const digest = (text: string): Buffer => createHash('sha256').update(text).digest();
  return timingSafeEqual(digest(one), digest(other));
}
