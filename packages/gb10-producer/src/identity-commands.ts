import type { Readable } from 'node:stream';

import { MuserError } from '@muser/protocol';
import { type Command, EXIT, printReady } from '@muser/service-kit';
import { createIdentity, type IdentityBundle, installIdentity } from '@muser/transport';

/** A bundle is two certificates and two short strings. */
const MAX_BUNDLE_BYTES = 64 * 1024;

/** How a producer is enrolled: `create` prints what the coordinator needs, `install` reads its answer. */
export const identityCommands: readonly Command[] = [
  {
    words: ['identity', 'create'],
    flags: ['dir'],
    run: async ({ dir = '' }) => {
      printReady({ ...(await createIdentity(dir, 'producer')) });
      return EXIT.ok;
    },
  },
  {
    words: ['identity', 'install'],
    flags: ['dir'],
    run: async ({ dir = '' }) => {
      await installIdentity(dir, await readBundle(process.stdin));
      return EXIT.ok;
    },
  },
];

/** @throws MuserError CERTIFICATE_INVALID; what the object holds is installIdentity's to check */
async function readBundle(input: Readable): Promise<IdentityBundle> {
  const blocks: Buffer[] = [];
  let length = 0;
  for await (const block of input) {
    length += (block as Buffer).length;
    if (length > MAX_BUNDLE_BYTES) {
      throw new MuserError('CERTIFICATE_INVALID', `the bundle is longer than ${MAX_BUNDLE_BYTES} bytes`);
    }
    blocks.push(block as Buffer);
  }
  try {
    const bundle: unknown = JSON.parse(Buffer.concat(blocks).toString('utf8'));
    if (typeof bundle === 'object' && bundle !== null) return bundle as IdentityBundle;
  } catch {
    // The parser's message would quote the input.
  }
  throw new MuserError('CERTIFICATE_INVALID', 'standard input has no bundle of a coordinator (a JSON object)');
}
